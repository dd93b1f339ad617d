"""Tries to get out of the sandbox in many ways. One line of JSON for each: what was tried, and how it ended.

Argument: a file of JSON with what is outside (written by ways_out.rs). A way that ends without an error has got
out; an error that no refusal explains counts as out as well, for then the kernel had already agreed.
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading

world = json.load(open(sys.argv[1]))
outside = world["outside"]
common = world["common"]
tree = world["tree"]
calls = world["calls"]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ways = []

REFUSALS = {
    errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.EXDEV, errno.ESRCH, errno.ECONNREFUSED,
    errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ENOSYS, errno.EBUSY, errno.ELOOP,
    errno.ENXIO, errno.ENODEV, errno.ESOCKTNOSUPPORT,
}


def way(name):
    return lambda function: ways.append((name, function))


def must(condition):
    """Ends a way as refused that no error ends."""
    if not condition:
        raise PermissionError(errno.EPERM, "had no effect")


def call(name, *arguments):
    arguments = [ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(calls[name]), *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def put(path, flags=os.O_WRONLY | os.O_CREAT, text=b"out"):
    descriptor = os.open(path, flags, 0o644)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)


def get(path):
    with open(path, "rb") as file:
        return file.read(4096)


# ---- files ----

@way("write outside")
def _(): put(outside + "/new")

@way("append to a file outside")
def _(): put(outside + "/file", os.O_WRONLY | os.O_APPEND)

@way("read a file outside")
def _(): get(outside + "/file")

@way("list a directory outside")
def _(): os.listdir(outside)

@way("write in /etc")
def _(): put("/etc/swarm-ways-out")

@way("write in /usr")
def _(): put("/usr/swarm-ways-out")

@way("write through a symbolic link")
def _():
    os.symlink(outside, tree + "/link")
    put(tree + "/link/new")

@way("a race of symbolic links")
def _():
    os.makedirs(tree + "/race-real", exist_ok=True)
    os.symlink(outside, tree + "/race-link")
    over = threading.Event()
    def swap():
        while not over.is_set():
            for name in ("race-real", "race-link"):
                os.symlink(name, tree + "/race-new")
                os.rename(tree + "/race-new", tree + "/race")
    thread = threading.Thread(target=swap)
    thread.start()
    out = 0
    try:
        for number in range(300):
            try:
                put(f"{tree}/race/raced-{number}")
            except OSError:
                continue
            # Where it went is only known from outside, too; here by looking for it in the place inside.
            out += not os.path.exists(f"{tree}/race-real/raced-{number}")
    finally:
        over.set()
        thread.join()
    must(out)

@way("/proc/self/root")
def _(): put("/proc/self/root" + outside + "/new")

@way("/proc/1/root")
def _(): put("/proc/1/root" + outside + "/new")

@way("/proc of a process outside, root")
def _(): put(f"/proc/{world['stranger']}/root{outside}/new")

@way(".. through the worktree's mount")
def _(): put(tree + "/../outside/new")

@way(".. from a directory that was open")
def _():
    descriptor = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    os.close(os.open("../outside/new", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))

@way("hard link to a file outside")
def _(): os.link(outside + "/file", tree + "/hard")

@way("hard link to a file that may be read")
def _(): os.link(common + "/config", tree + "/hard-config")

@way("rename into the outside")
def _():
    put(tree + "/mine")
    os.rename(tree + "/mine", outside + "/mine")

@way("rename out of the outside")
def _(): os.rename(outside + "/file", tree + "/theirs")

@way("remove a file outside")
def _(): os.unlink(outside + "/file")

@way("truncate a file outside")
def _(): os.truncate(outside + "/file", 0)

@way("truncate a file that may be read")
def _(): os.truncate(common + "/config", 0)

@way("a nameless file outside")
def _(): os.close(os.open(outside, os.O_TMPFILE | os.O_WRONLY, 0o600))

@way("chmod outside")
def _(): os.chmod(common + "/config", 0o600)

@way("chown outside")
def _(): os.chown(common + "/config", os.getuid(), os.getgid())

@way("utime outside")
def _(): os.utime(common + "/config", (1, 1))

@way("xattr outside")
def _(): os.setxattr(common + "/config", "user.swarm", b"out")

@way("open by handle")
def _(): call("open_by_handle_at", -100, 0, 0)

@way("shared memory with programs outside")
def _():
    put("/dev/shm/" + world["shm"])
    must(os.stat("/dev/shm").st_dev == world["shm_device"])

@way("the worker's transcript")
def _(): put(world["transcript"], os.O_WRONLY | os.O_APPEND)

@way("descriptors that were handed in")
def _():
    mine = {0, 1, 2}
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number in mine:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # The one of the listing.
        if not target.startswith("/proc/") and not target.startswith(tree):
            return
    must(False)

# ---- git ----

@way("a hook of the main repository")
def _(): put(common + "/hooks/post-commit")

@way("the configuration of the main repository")
def _(): put(common + "/config", os.O_WRONLY | os.O_APPEND)

@way("a ref of the main repository")
def _(): put(common + "/refs/heads/main", os.O_WRONLY)

@way("packed refs of the main repository")
def _(): put(common + "/packed-refs")

@way("a lock in the main repository")
def _(): put(common + "/index.lock")

@way("an object of the main repository")
def _():
    os.makedirs(common + "/objects/ff", exist_ok=True)
    put(common + "/objects/ff/" + "0" * 38)

@way("removing objects of the main repository")
def _():
    directory = next(d for d in os.listdir(common + "/objects") if len(d) == 2)
    name = os.listdir(f"{common}/objects/{directory}")[0]
    os.unlink(f"{common}/objects/{directory}/{name}")

@way("alternates of the main repository")
def _():
    put(common + "/objects/info/alternates")

@way("another worktree's directory in git's")
def _(): put(common + "/worktrees/other/HEAD")

@way("configuration of the worktree")
def _(): put(world["git_dir"] + "/config.worktree")

@way("a repository of one's own behind the worktree's")
def _():
    os.rename(world["git_dir"] + "/commondir", world["git_dir"] + "/commondir.away")
    os.rename(world["git_dir"] + "/commondir.away", world["git_dir"] + "/commondir")

@way("another .git file in the worktree")
def _():
    os.rename(tree + "/.git", tree + "/.git-away")
    os.rename(tree + "/.git-away", tree + "/.git")

# ---- secrets ----

for secret in world["secrets"]:
    way("secret " + secret)(lambda secret=secret: get(secret))

@way("the shadow file")
def _(): get("/etc/shadow")

@way("environment of the worker")
def _(): must(b"=" in get(f"/proc/{world['worker']}/environ"))

@way("environment of a process outside")
def _(): must(b"=" in get(f"/proc/{world['stranger']}/environ"))

@way("keys in one's own environment")
def _():
    # `GIT_CONFIG_KEY_0` names a setting of git.
    names = [name for name in os.environ if not name.startswith("GIT_CONFIG_KEY_")]
    must(any("KEY" in name or "TOKEN" in name or name == "SSH_AUTH_SOCK" for name in names))

# ---- the mount table ----

@way("mount")
def _(): call("mount", b"none", tree.encode(), b"tmpfs", 0, 0)

@way("mount again, writable")
def _():
    call("mount", b"none", common.encode(), 0, 32 | 4096, 0)  # MS_REMOUNT | MS_BIND

@way("bind the root into the worktree")
def _(): call("mount", b"/", tree.encode(), 0, 4096, 0)

@way("umount")
def _(): call("umount2", common.encode(), 2)

@way("mount_setattr")
def _():
    attributes = struct.pack("QQQQ", 0, 1, 0, 0)
    call("mount_setattr", -100, common.encode(), 0, attributes, len(attributes))

@way("open_tree")
def _(): call("open_tree", -100, b"/", 1)

@way("move_mount")
def _(): call("move_mount", -100, b"/proc", -100, tree.encode(), 0)

@way("fsopen")
def _(): call("fsopen", b"tmpfs", 0)

@way("chroot")
def _(): os.chroot(tree)

@way("pivot_root")
def _(): call("pivot_root", tree.encode(), tree.encode())

# ---- namespaces ----

for name, flag in [("user", 0x10000000), ("mount", 0x00020000), ("pid", 0x20000000), ("network", 0x40000000)]:
    way("a new namespace by unshare: " + name)(lambda flag=flag: call("unshare", flag))
    def by_clone(flag=flag):
        pid = call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
    way("a new namespace by clone: " + name)(by_clone)

@way("a new namespace by clone3")
def _():
    arguments = ctypes.create_string_buffer(struct.pack("Q", 0x10000000) + bytes(24) + struct.pack("Q", signal.SIGCHLD) + bytes(24))
    pid = call("clone3", arguments, 64)
    if pid == 0:
        os._exit(0)

for name in ("mnt", "user", "net", "pid"):
    def join(name=name):
        descriptor = os.open(f"/proc/1/ns/{name}", os.O_RDONLY)
        call("setns", descriptor, 0)
    way("joining a namespace: " + name)(join)

@way("joining the worker's namespaces")
def _():
    descriptor = call("pidfd_open", world["worker"], 0)
    call("setns", descriptor, 0x00020000)

# ---- other processes ----

@way("a signal to a process outside")
def _(): os.kill(world["stranger"], signal.SIGUSR1)

@way("killing a process outside")
def _(): os.kill(world["stranger"], signal.SIGKILL)

@way("killing the helper")
def _():
    must(os.getppid() != 0 and world["tier"] != 1)
    os.kill(world["worker"], signal.SIGKILL)

@way("a signal by descriptor")
def _():
    descriptor = call("pidfd_open", world["stranger"], 0)
    call("pidfd_send_signal", descriptor, signal.SIGUSR1, 0, 0)

@way("ptrace")
def _(): call("ptrace", 16, world["stranger"], 0, 0)

@way("ptrace by seize")
def _(): call("ptrace", 0x4206, world["stranger"], 0, 0)

@way("reading memory of a process")
def _(): call("process_vm_readv", world["stranger"], 0, 0, 0, 0, 0)

@way("writing memory of a process")
def _(): call("process_vm_writev", world["stranger"], 0, 0, 0, 0, 0)

@way("/proc/PID/mem of a process outside")
def _(): os.close(os.open(f"/proc/{world['stranger']}/mem", os.O_RDWR))

@way("/proc/1/mem")
def _(): os.close(os.open("/proc/1/mem", os.O_RDWR))

@way("a descriptor of a process outside")
def _():
    descriptor = call("pidfd_open", world["stranger"], 0)
    call("pidfd_getfd", descriptor, 1, 0)

@way("limits of a process outside")
def _():
    call("prlimit64", world["stranger"], 0, struct.pack("QQ", 1 << 40, 1 << 40), 0)

@way("priority of a process outside")
def _(): os.setpriority(os.PRIO_PROCESS, world["stranger"], 19)

@way("kcmp")
def _(): call("kcmp", world["worker"], world["stranger"], 0, 0, 0)

@way("another control group")
def _():
    for top, _, files in os.walk("/sys/fs/cgroup"):
        if "cgroup.procs" in files:
            put(top + "/cgroup.procs", os.O_WRONLY, b"0")
            return
    raise FileNotFoundError(errno.ENOENT, "no control group")

# ---- sockets ----

@way("an abstract socket of a program outside")
def _():
    with socket.socket(socket.AF_UNIX) as s: s.connect("\0" + world["abstract"])

for path in world["sockets"]:
    def connect(path=path):
        with socket.socket(socket.AF_UNIX) as s: s.connect(path)
    way("socket " + path)(connect)

for address in ["\0" + world["datagrams"][0], world["datagrams"][1]]:
    for kind in [socket.SOCK_DGRAM, socket.SOCK_RAW]:
        def send(address=address, kind=kind):
            with socket.socket(socket.AF_UNIX, kind) as s: s.sendto(b"x", address)
        way("a datagram to %r, %r" % (address, kind))(send)

        # One end of a pair is connected, and sends elsewhere all the same.
        def send_from_pair(address=address, kind=kind):
            one, other = socket.socketpair(socket.AF_UNIX, kind)
            with one, other: one.sendto(b"x", address)
        way("a datagram of a pair to %r, %r" % (address, kind))(send_from_pair)

        def connect_pair(address=address, kind=kind):
            one, other = socket.socketpair(socket.AF_UNIX, kind)
            with one, other: one.connect(address)
        way("a pair connected anew to %r, %r" % (address, kind))(connect_pair)

@way("a connection to a server outside")
def _():
    with socket.create_connection(("127.0.0.1", world["tcp"]), 5): pass

@way("a connection over IPv6")
def _():
    with socket.create_connection(("::1", world["tcp"]), 5): pass

@way("a datagram to a program outside")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", world["udp"]))
        s.send(b"out")
        s.send(b"out")  # Hears of the first one's fate.

@way("a connection to the network")
def _():
    with socket.create_connection(("192.0.2.1", 80), 5): pass

@way("a raw socket")
def _(): socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)

@way("a packet socket")
def _(): socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)

@way("a socket of the virtual machine")
def _(): socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)

@way("a socket of the kernel's ciphers")
def _(): socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)

@way("a bluetooth socket")
def _(): socket.socket(31, socket.SOCK_RAW, 1)

@way("changing the network over netlink")
def _():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        # RTM_NEWLINK, taking the loopback interface down; answered by an error number.
        link = struct.pack("BxHiII", 0, 0, 1, 0, 1)
        s.send(struct.pack("IHHII", 16 + len(link), 16, 1 | 4, 1, 0) + link)
        number = -struct.unpack("i", s.recv(4096)[16:20])[0]
        if number:
            raise OSError(number, os.strerror(number))

# ---- the kernel ----

for name, arguments in [
    ("io_uring_setup", (1, 0)), ("io_uring_enter", (-1, 0, 0, 0, 0, 0)), ("keyctl", (0, -3, 1, 0, 0)),
    ("add_key", (b"user", b"swarm", b"x", 1, -3)), ("request_key", (b"user", b"swarm", 0, -3)), ("bpf", (0, 0, 0)),
    ("perf_event_open", (0, 0, -1, -1, 0)), ("userfaultfd", (1,)), ("kexec_load", (0, 0, 0, 0)),
    ("kexec_file_load", (-1, -1, 0, 0, 0)), ("init_module", (0, 0, b"")), ("finit_module", (-1, b"", 0)),
    ("delete_module", (b"swarm", 0)), ("reboot", (0, 0, 0, 0)), ("swapon", (b"/x", 0)), ("acct", (b"/x",)),
    ("syslog", (3, 0, 0)), ("settimeofday", (0, 0)), ("adjtimex", (0,)), ("clock_settime", (0, 0)),
    ("sethostname", (b"x", 1)), ("quotactl", (0, 0, 0, 0)), ("fanotify_init", (0, 0)), ("process_madvise", (-1, 0, 0, 0, 0)),
]:
    way("call " + name)(lambda name=name, arguments=arguments: call(name, *arguments))

@way("a node for a disk")
def _(): os.mknod(tree + "/disk", 0o60600, os.makedev(8, 0))

@way("a node for the memory")
def _(): os.mknod(tree + "/mem", 0o20600, os.makedev(1, 1))

for path in ("/dev/mem", "/dev/kmsg", "/dev/kcore", "/proc/kcore", "/dev/vda", "/dev/sda", "/dev/fuse", "/dev/kvm", "/dev/net/tun"):
    way("device " + path)(lambda path=path: os.close(os.open(path, os.O_RDWR)))

for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
             "/sys/kernel/uevent_helper", "/sys/power/state", "/proc/sys/net/ipv4/ip_forward"):
    way("setting " + path)(lambda path=path: os.close(os.open(path, os.O_WRONLY)))

@way("typing into a terminal")
def _():
    for name in ("/dev/tty", "/dev/console", "/dev/tty1"):
        try:
            descriptor = os.open(name, os.O_RDWR)
        except OSError:
            continue
        fcntl.ioctl(descriptor, 0x5412, b"x")
        return
    fcntl.ioctl(0, 0x5412, b"x")

@way("rights of a program with the setuid bit")
def _():
    status = open("/proc/self/status").read()
    must("NoNewPrivs:\t1" not in status)

@way("capabilities over the machine")
def _():
    status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
    # Files, ids, low ports: what paths and the network bound.
    kept = sum(1 << number for number in (0, 1, 3, 4, 6, 7, 10))
    must(int(status["CapEff"], 16) & ~kept or int(status["CapBnd"], 16) & ~kept and os.getuid() == 0)

# ---- staying ----

@way("a process that stays")
def _():
    # Judged from outside: nothing of it may be left when the call has ended.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.execve("/bin/sleep", ["sleep", str(world["nap"])], {})
        os._exit(0)
    must(False)


for name, function in ways:
    try:
        function()
        out, detail = True, "no error"
    except OSError as error:
        out = error.errno not in REFUSALS
        if error.errno == errno.ENOTSUP:
            out = False
        detail = str(error)
    print(json.dumps({"way": name, "out": out, "detail": detail}), flush=True)
