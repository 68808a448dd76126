"""Field declarations of Pod, by subject. Import `pod.POD` and `pod.POD_SPEC`; the other files are their parts."""
