//! Follows a session: events in, rows or lines out, until the task has its verdict or the person leaves.
//! Losing the server is not the end: it is found or started again, and the cursor goes on without a gap.

use std::time::Duration;

use serde_json::Value;
use swarm_protocol::{
    PermissionRequestId, Seq, SessionId, SessionState, TaskId,
    api::{ClientContext, SessionView, TaskView},
    event::EventLine,
};
use tokio::{sync::mpsc, task::JoinSet, time::Instant};

use super::{
    alert::Alerts,
    client::Client,
    error::{CliError, EXIT_INTERRUPTED, Result},
    keys::{Action, Decoder, Keys},
    link::Links,
    output::Stream,
    painter::Painter,
    shell::{Shell, now},
    signals::{self, Early, Signal},
    state::StateView,
    stream::{self, Arrival},
    summary, terminal,
};

mod calls;
mod conclusion;
mod telling;

use calls::Called;
pub(crate) use conclusion::conclude;

/// Events that were read and wait to be shown. Beyond them the stream waits: it is the buffer.
const EVENTS_AHEAD: usize = 256;

/// Without a line for this long, a line says that work goes on.
const STILL_WORKING: Duration = Duration::from_secs(60);

/// Rows move this often while things happen, and once a second at rest.
const BUSY: Duration = Duration::from_millis(100);

const REST: Duration = Duration::from_secs(1);

/// How long who leaves waits for the server to have heard of the stop.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// After a resize the terminal gets this long to settle.
const RESIZE_REST: Duration = Duration::from_millis(50);

/// What is followed, and how.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) session: SessionView,
    /// The task whose verdict ends it.
    pub(crate) task_id: TaskId,
    pub(crate) state: StateView,
    /// Keys and endpoints, for a server that lost them.
    pub(crate) context: ClientContext,
    /// Signals, from before there was a session on.
    pub(crate) signals: Early,
}

/// How following ended.
#[derive(Debug)]
pub(crate) enum Ending {
    /// The task has its verdict.
    Verdict {
        task: Box<TaskView>,
        session: Box<SessionView>,
        /// Where the server is by now.
        address: String,
        cursor: Seq,
        /// Turns of the coordinator that were committed while we looked.
        own_turns: u32,
        interrupted: bool,
    },
    /// The person, or the terminal, left. The work goes on.
    Left { exit: u8 },
}

/// Follows until the end. The shell has its streams back afterwards.
pub(crate) async fn follow(shell: &mut Shell, client: &Client, plan: Plan) -> Result<Ending> {
    let has_rows = shell.has_live_rows();
    let alerts = (has_rows && shell.err.is_terminal).then(|| Alerts::of(shell));
    let links = Links::find(&shell.around, &shell.err, &client.address).await;
    let sink = || Stream::of(Box::new(std::io::sink()), false, false);
    let mut out = std::mem::replace(&mut shell.out, sink());
    let mut err = std::mem::replace(&mut shell.err, sink());
    // The exit code is the verdict's, whoever stopped reading.
    out.tolerant = true;
    err.tolerant = true;
    let words_in_block = has_rows && out.is_terminal;
    let painter = Painter::start(out, err, has_rows)?;
    let keyboard = if has_rows && !shell.options.no_input { terminal::Keyboard::take() } else { None };
    let mut follower = Follower {
        shell,
        client: client.clone(),
        session_id: plan.session.session_id,
        task_id: plan.task_id,
        state: plan.state,
        context: plan.context,
        painter,
        keyboard,
        keys: Keys::default(),
        decoder: Decoder::default(),
        links,
        alerts,
        has_rows,
        words_in_block,
        stopping: false,
        interrupted: false,
        reconnecting: false,
        ending: false,
        calls: JoinSet::new(),
        last_line: Instant::now(),
        last_event: Instant::now(),
        own_answers: Vec::new(),
    };
    let ended = follower.run(plan.signals).await;
    let Follower { shell, painter, keyboard, .. } = follower;
    drop(keyboard);
    if let Some((out, err)) = painter.finish() {
        shell.out = out;
        shell.err = err;
    }
    ended
}

struct Follower<'a> {
    shell: &'a mut Shell,
    client: Client,
    session_id: SessionId,
    task_id: TaskId,
    state: StateView,
    context: ClientContext,
    painter: Painter,
    keyboard: Option<terminal::Keyboard>,
    keys: Keys,
    decoder: Decoder,
    links: Links,
    /// None where no terminal shows rows.
    alerts: Option<Alerts>,
    has_rows: bool,
    /// Words go into the block's frame: standard output is the same terminal.
    words_in_block: bool,
    stopping: bool,
    interrupted: bool,
    reconnecting: bool,
    /// The verdict is known and being fetched: the server may go.
    ending: bool,
    calls: JoinSet<Called>,
    last_line: Instant,
    last_event: Instant,
    /// Requests we answered ourselves: nobody is told who did.
    own_answers: Vec<PermissionRequestId>,
}

impl Follower<'_> {
    async fn run(&mut self, early: Early) -> Result<Ending> {
        let Early { mut signals, came } = early;
        let (sender, mut arrivals) = mpsc::channel::<Arrival>(EVENTS_AHEAD);
        let mut reader = JoinSet::new();
        reader.spawn(stream::read(
            self.shell.silent(),
            self.client.clone(),
            self.session_id,
            self.state.cursor,
            self.context.clone(),
            sender,
        ));
        for signal in came {
            if let Some(ending) = self.signalled(signal).await {
                return Ok(ending);
            }
        }
        self.draw();
        let mut closed = false;
        loop {
            let pace = if self.last_event.elapsed() < REST { BUSY } else { REST };
            // A branch that does not win has taken nothing: channels, signals and the keyboard are safe to
            // cancel, and a call that is under way stays in its set.
            tokio::select! {
                arrival = arrivals.recv(), if !closed => match arrival {
                    Some(arrival) => self.arrived(arrival)?,
                    None if self.ending => closed = true,
                    None => return Err(CliError::new("server_gone", "the events broke off")),
                },
                Some(called) = self.calls.join_next(), if !self.calls.is_empty() => {
                    if let Some(ending) = called.map_or(Ok(None), |called| self.called(called))? {
                        return Ok(ending);
                    }
                }
                typed = typed(self.keyboard.as_mut()) => {
                    if self.typed(typed) {
                        self.say([summary::left(self.session_id)]);
                        self.deliver_stop().await;
                        return Ok(Ending::Left { exit: 0 });
                    }
                }
                signal = signals.next() => {
                    if let Some(ending) = self.signalled(signal).await {
                        self.deliver_stop().await;
                        return Ok(ending);
                    }
                }
                () = tokio::time::sleep(pace) => {}
            }
            self.beat();
            self.draw();
        }
    }

    fn arrived(&mut self, arrival: Arrival) -> Result<()> {
        self.last_event = Instant::now();
        match arrival {
            Arrival::Event(value) => self.event(value),
            // Whoever asks for the verdict looks for the server, too.
            Arrival::Lost | Arrival::Back(_) | Arrival::Failed(_) if self.ending => {}
            Arrival::Lost => {
                self.reconnecting = true;
                if !self.has_rows {
                    self.line("the server is away; looking for it");
                }
            }
            Arrival::Back(client) => {
                self.links.follow(&client.address);
                self.client = client;
                self.reconnecting = false;
                if !self.has_rows {
                    self.line("the server is back");
                }
            }
            Arrival::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn event(&mut self, value: Value) {
        if self.shell.is_json() {
            let known =
                value.get("seq").and_then(Value::as_u64).is_some_and(|seq| Seq(seq) <= self.state.cursor);
            if !known {
                self.painter.words(format!("{value}\n").as_bytes());
            }
        }
        // What this version does not know is passed over; the cursor goes on with the next that it does.
        let Ok(Some(line)) = EventLine::from_json(value) else { return };
        for news in self.state.apply(line) {
            self.news(&news);
        }
        let over = matches!(self.state.state, SessionState::Idle | SessionState::Ended);
        if self.interrupted && over || self.state.state == SessionState::Ended {
            self.ask_for_the_end();
        }
    }

    /// Takes typed bytes; true when the person leaves.
    fn typed(&mut self, typed: std::io::Result<Vec<u8>>) -> bool {
        let Ok(bytes) = typed else {
            // The keyboard is gone; the rest goes on without it.
            self.keyboard = None;
            return false;
        };
        self.last_event = Instant::now();
        let keys = self.decoder.decode(&bytes);
        match self.keys.typed(&keys, now()) {
            Action::Nothing | Action::Redraw => {}
            Action::Leave => return true,
            Action::View => self.view(),
            Action::Answer(id, answer) => self.answer(id, answer),
        }
        false
    }

    async fn signalled(&mut self, signal: Signal) -> Option<Ending> {
        match signal {
            Signal::Interrupt if self.keys.interrupt() => {}
            Signal::Interrupt if self.interrupted => {
                self.say([summary::left(self.session_id)]);
                return Some(Ending::Left { exit: EXIT_INTERRUPTED });
            }
            Signal::Interrupt => {
                self.interrupted = true;
                self.stopping = true;
                self.interrupt_session();
            }
            Signal::Terminate | Signal::Hangup => return Some(Ending::Left { exit: signal.exit() }),
            Signal::Resized => {
                tokio::time::sleep(RESIZE_REST).await;
                self.painter.invalidate();
            }
            Signal::Suspend => {
                self.painter.pause();
                if let Some(keyboard) = &mut self.keyboard {
                    keyboard.leave();
                }
                signals::suspend();
            }
            Signal::Continue => {
                if let Some(keyboard) = &mut self.keyboard {
                    keyboard.enter();
                }
                self.painter.invalidate();
            }
        }
        None
    }
}

/// What is typed; without a keyboard, never.
async fn typed(keyboard: Option<&mut terminal::Keyboard>) -> std::io::Result<Vec<u8>> {
    match keyboard {
        Some(keyboard) => keyboard.read().await,
        None => std::future::pending().await,
    }
}
