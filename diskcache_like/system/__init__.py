"""What the operating system and the interpreter impose: nothing in here knows about caches.

- `callers`: warn about the line that called the package
- `signals`: tell what a signal handler raised from an error of the interrupted call
- `forks`: notice cheaply that this process was forked
- `boot`: which boot of the machine this is
- `mounts`: on which kind of file system a path is
- `paths`: inspect paths and walk directories
- `tasks`: the running task of an event loop
- `blocking`: keep a call from blocking an event loop
- `threads`: threads for calls that would
- `generics`: the type variables of `Cache[K, V]`
"""
