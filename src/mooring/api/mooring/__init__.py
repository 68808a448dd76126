"""mooring.dev/v1alpha1: kinds of Mooring's own, in which identity and trust are recorded.

Against another API server they are CustomResourceDefinitions. Each file declares one kind; `membership` and `tombstones` judge by
them.
"""
