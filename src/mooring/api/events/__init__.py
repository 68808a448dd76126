"""events.k8s.io/v1: Event, stored as an Event of the core group."""
