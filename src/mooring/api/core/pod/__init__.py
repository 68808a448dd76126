"""Pod and PodTemplate: defaults, validation, warnings, print columns, strategies, quality of service, object references.

Import `strategy.KIND` and `podtemplate.KIND` for the kinds, `references` for the objects that a Pod refers to.
"""
