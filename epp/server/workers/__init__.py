"""`--workers N`: several processes serve ext_proc on one port and decide alike.

The parent binds the ports, knows the pool, scrapes, trains, and shows metrics and debug pages. Workers serve ext_proc
and decide by themselves, each with a whole copy of what a decision reads, so that no request waits for another process.

    what                         how it is shared
    connections                  the parent accepts; the worker with the fewest gets the socket
    requests, tokens in flight   memory that all see, a plane for each worker: exact at once
    prefixes, sessions, …        each worker tells its peers, in batches a millisecond apart
    pool and signals             parent to workers, what has changed, every 20 ms
    latency                      samples to the parent, which learns and trains; what it learned to the workers
    counts of metrics            differences, to the parent; what a worker has counted outlives it
    readiness                    the parent's word, told to the workers

    supervisor      the parent's side: a `Transport` whose streams are served elsewhere
    link            one worker as the parent sees it, through its lives
    fork_server     a process that has everything loaded and no threads: workers are its forks
    worker          one worker
    feeds           what the parent tells all workers
    channel         messages between two processes
    messages        what they are
    handoff         sockets from the parent to workers
    balance         which worker gets the next, and which lets go of some
    shared_load     the memory that all see
    pool_feed       the pool, from the parent to a worker
    counts          counts of metrics, as differences
    replicas        what plugins tell their peers
    records         access log records that came to the wrong worker
    batches         what is collected for a moment and sent together
    parent          how all this comes to be, and several workers' pages as one

A worker that dies takes its connections with it; nothing of what it held in flight remains, and it is started anew.
When the parent dies, so does every worker.
"""
