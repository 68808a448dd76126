"""NodeRestriction: the admission plugin that limits what a node may write. `plugin` is the entry, `pods` its rules for Pods."""
