"""State that the worker processes of one server share, so that limits hold for the host and not for each worker.

* `share`: the memory that the parent makes before it forks, the part of it that one worker gets, and the documents of a worker
  that stay when it ends.
* `counts`: numbers that each worker writes for itself and all add up, without a lock.
* `sources`: tables by source network. `lock`: their locks, which do not outlive their holder, and the files that all workers write.
* `siblings`: questions to the other workers.

`mooring.server.transport` and the rooms above import from here; this folder imports nothing of the server.
"""
