"""State that the worker processes of one server share, so that limits hold for the host and not for each worker.

* `share`: the memory that the parent makes before it forks, and the part of it that one worker gets.
* `counts`: numbers that each worker writes for itself and all add up, without a lock.
* `buckets`, `sources`: tables by source network, under a `lock` that does not outlive its holder.
* `files`: files that all workers write. `published`: documents that stay when their worker ends.
* `siblings`: questions to the other workers.

`mooring.server.transport` and the rooms above import from here; this folder imports nothing of the server.
"""
