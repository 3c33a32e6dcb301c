"""ext_proc over an HTTP/2 server of our own that does nothing else, for a tenth of what a general one costs.

It serves one streaming gRPC method and health. What makes it cheap: no task per stream and no await per message; one
write per read; request header blocks that mean the same every time, so that each is decoded once.

    protocol     the asyncio side: reads, writes, timers
    connection   frames in, frames out, without I/O: RFC 9113's rules for one connection
    sending      what is queued, under the peer's flow control
    stream       one gRPC call, and the exchange that answers it
    messages     bytes of a stream to gRPC messages
    headers      header blocks to calls, and the blocks that we answer with
    frames       bytes to frames
    limits       every bound, with its default
"""
