//! The one thread that starts processes. A process that asks to die with its parent dies with the
//! *thread* that made it; threads of the runtime come and go, this one lives as long as its owner.

use std::io;
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Each waiting caller holds one place, so this bounds callers, not commands.
const CAPACITY: usize = 16;

type Request = (Command, Handle, oneshot::Sender<io::Result<Child>>);

#[derive(Debug)]
pub(super) struct Spawner(mpsc::Sender<Request>);

impl Spawner {
    pub(super) fn new() -> io::Result<Self> {
        let (sender, mut requests) = mpsc::channel::<Request>(CAPACITY);
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            while let Some((mut command, runtime, reply)) = requests.blocking_recv() {
                let _context = runtime.enter();
                let child = command.spawn();
                // The command holds the child's ends of pipes; a reader waits for their end.
                drop(command);
                // A caller that has gone drops the child, and with it the helper's socket.
                let _gone = reply.send(child);
            }
        })?;
        Ok(Self(sender))
    }

    pub(super) async fn spawn(&self, command: Command) -> io::Result<Child> {
        let (reply, child) = oneshot::channel();
        let ended = || io::Error::other("the spawning thread has ended");
        self.0.send((command, Handle::current(), reply)).await.map_err(|_| ended())?;
        child.await.map_err(|_| ended())?
    }
}
