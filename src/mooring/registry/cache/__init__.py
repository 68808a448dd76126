"""The watch cache: all objects in memory, fed by one watch of the store, with views, selections and watches over it.

The registry imports `watchcache`. `events` has the form in which objects travel through registry and server; rooms above import it.
"""
