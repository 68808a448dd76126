"""Discovery of groups, versions and resources. Import `documents` for the documents, `messages` for their protobuf schemas."""
