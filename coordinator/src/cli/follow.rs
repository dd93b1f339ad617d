//! Follows a session: events in, rows or lines out, until the task has its verdict or the person leaves.
//! Losing the server is not the end: it is found or started again, and the cursor goes on without a gap.

use std::time::Duration;

use serde_json::{Value, json};
use swarm_protocol::{
    PermissionRequestId, Seq, SessionId, SessionState, TaskId, Timestamp,
    api::{
        AnswerPermission, AnsweredPermission, ClientContext, PermissionView, SessionDetail, SessionView,
        StopView, TaskView,
    },
    event::EventLine,
};
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    alert::{Alerts, Occasion},
    args::Progress,
    client::Client,
    commands::steer,
    error::{CliError, EXIT_FAILURE, EXIT_INTERRUPTED, Result},
    keys::{Action, Decoder, Keys},
    layout::{self, Picture},
    link::Links,
    output::Stream,
    painter::Painter,
    plain,
    prefix::Prefixes,
    rows::{self, Columns, Look},
    shell::{Shell, now},
    signals::Early,
    state::{News, StateView},
    stream::{self, Arrival},
    summary, terminal,
    text::{visible, visible_lines, wrap},
};

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
        last_line: tokio::time::Instant::now(),
        last_event: tokio::time::Instant::now(),
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

/// What a call to the server that following made brought.
#[derive(Debug)]
enum Called {
    Answered(PermissionRequestId, Result<AnsweredPermission>),
    Stopped(Result<StopView>),
    Desk(Result<Vec<PermissionView>>),
    Ended(Result<Box<(TaskView, SessionDetail)>>),
    Resumed,
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
    last_line: tokio::time::Instant,
    last_event: tokio::time::Instant,
    /// Requests we answered ourselves: nobody is told who did.
    own_answers: Vec<PermissionRequestId>,
}

impl Follower<'_> {
    async fn run(&mut self, early: Early) -> Result<Ending> {
        let Early { mut signals, came } = early;
        // One event waits while one is taken in; the stream itself is the buffer.
        let (sender, mut arrivals) = mpsc::channel::<Arrival>(256);
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
        self.last_event = tokio::time::Instant::now();
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

    fn news(&mut self, news: &News) {
        match news {
            News::Words(lines) => return self.words(lines),
            News::Finished(task_id) if *task_id == self.task_id => return self.ask_for_the_end(),
            News::Asked(request) => {
                self.ask_the_desk();
                self.alert(Occasion::Asks(&request.worker_id));
            }
            News::NeedsKey => self.resume(),
            _ => {}
        }
        if self.has_rows {
            let columns = Columns::fit(terminal::size().0, 3);
            match news {
                News::Ended(id) => {
                    if let Some(worker) = self.state.worker(id) {
                        let prefixes = layout::prefixes(&self.state);
                        let look =
                            Look { glyphs: self.shell.glyphs, links: &self.links, prefixes: &prefixes };
                        let line = rows::just_ended(&columns, look, worker, now());
                        self.say([line.trim_end().to_owned()]);
                    }
                }
                // The rows show it.
                News::Started(_) | News::Asked(_) | News::Words(_) | News::Finished(_) => {}
                News::Decided(_, decision, _) if self.own_answers.contains(&decision.id) => {}
                News::Continued(..)
                | News::Decided(..)
                | News::Withdrawn(_)
                | News::NeedsKey
                | News::Restarted(..)
                | News::Trouble(..)
                | News::Merged(..) => self.say(plain::lines(news, &self.state)),
            }
        } else {
            for line in plain::lines(news, &self.state) {
                self.line(&line);
            }
        }
    }

    /// The coordinator's words: whole lines, harmless, on standard output.
    fn words(&mut self, lines: &[String]) {
        if self.shell.is_json() || self.shell.options.quiet {
            return;
        }
        if self.words_in_block {
            let cells = terminal::size().0.saturating_sub(1);
            self.painter.permanent(lines.iter().flat_map(|line| wrap(&visible(line), cells)));
        } else {
            let text: String =
                lines.iter().map(|line| format!("{}\n", visible(&line.replace('\t', "    ")))).collect();
            self.painter.words(text.as_bytes());
        }
    }

    /// Calls whoever left the terminal alone.
    fn alert(&self, occasion: Occasion<'_>) {
        if let Some(alerts) = self.alerts {
            self.painter.alert(&alerts.bytes(occasion));
        }
    }

    /// A line on standard error that stays.
    fn say(&mut self, lines: impl IntoIterator<Item = String>) {
        if self.shell.options.quiet || self.shell.options.progress == Progress::None {
            return;
        }
        self.last_line = tokio::time::Instant::now();
        let lines: Vec<String> = lines.into_iter().collect();
        if self.has_rows {
            let cells = terminal::size().0.saturating_sub(1);
            // A styled row is as wide as it may be already; words are wrapped.
            self.painter.permanent(
                lines
                    .into_iter()
                    .flat_map(|line| if line.contains('\u{1b}') { vec![line] } else { wrap(&line, cells) }),
            );
        } else {
            self.painter.permanent(lines);
        }
    }

    /// A fact with its time, for readers without rows.
    fn line(&mut self, words: &str) {
        let stamp = plain::stamp(&self.state, now());
        self.say([format!("{stamp} {words}")]);
    }

    /// Says that work goes on, when nothing else was said for long.
    fn beat(&mut self) {
        if !self.has_rows && self.last_line.elapsed() >= STILL_WORKING {
            let words = plain::still_working(&self.state);
            self.line(&words);
        }
    }

    fn draw(&mut self) {
        if !self.has_rows {
            return;
        }
        let (width, height) = terminal::size();
        let now = now();
        if let Some(keyboard) = &self.keyboard {
            let ask = self.state.asks.first();
            let shown = ask.map(|ask| {
                (&ask.request.id, ask.request.proposed_rule.is_some(), layout::fits(ask, width, height))
            });
            if self.keys.show(shown, now) {
                // What was typed before is for nobody.
                keyboard.flush();
            }
        }
        // At rest only ages move, once a second.
        let shown_at = if self.last_event.elapsed() < REST {
            now
        } else {
            Timestamp::from_millis(now.as_millis() / 1000 * 1000)
        };
        self.painter.rows(layout::block(&Picture {
            state: &self.state,
            keys: &self.keys,
            stopping: self.stopping,
            reconnecting: self.reconnecting,
            has_keyboard: self.keyboard.is_some(),
            width,
            height,
            now: shown_at,
            glyphs: self.shell.glyphs,
        }));
    }

    /// Takes typed bytes; true when the person leaves.
    fn typed(&mut self, typed: std::io::Result<Vec<u8>>) -> bool {
        let Ok(bytes) = typed else {
            // The keyboard is gone; the rest goes on without it.
            self.keyboard = None;
            return false;
        };
        self.last_event = tokio::time::Instant::now();
        let keys = self.decoder.decode(&bytes);
        match self.keys.typed(&keys, now()) {
            Action::Nothing | Action::Redraw => {}
            Action::Leave => return true,
            Action::View => self.view(),
            Action::Answer(id, answer) => self.answer(id, answer),
        }
        false
    }

    /// The whole request, above the block.
    fn view(&mut self) {
        let Some(ask) = self.state.asks.first() else { return };
        let mut lines =
            vec![format!("{} asks {}:", ask.request.worker_id.suffix(), visible(&ask.request.tool))];
        match ask.request.input.get("command").and_then(Value::as_str) {
            Some(command) => lines.extend(visible_lines(command).map(|line| format!("  {line}"))),
            None => {
                let input = serde_json::to_string_pretty(&ask.request.input).unwrap_or_default();
                lines.extend(visible_lines(&input).map(|line| format!("  {line}")));
            }
        }
        lines.push(format!("asks because {}", visible(&ask.request.why)));
        self.say(lines);
    }

    fn answer(&mut self, id: PermissionRequestId, body: AnswerPermission) {
        self.own_answers.push(id.clone());
        let client = self.client.clone();
        self.calls.spawn(async move {
            let answered = client.post(&format!("/permissions/{id}"), &body).await;
            Called::Answered(id, answered)
        });
    }

    fn ask_the_desk(&mut self) {
        let client = self.client.clone();
        self.calls.spawn(async move { Called::Desk(client.get("/permissions").await) });
    }

    fn ask_for_the_end(&mut self) {
        self.ending = true;
        let (client, task_id, session_id) = (self.client.clone(), self.task_id, self.session_id);
        self.calls.spawn(async move {
            let path = format!("/tasks/{task_id}");
            let session = format!("/sessions/{session_id}");
            Called::Ended(
                match tokio::try_join!(client.get::<TaskView>(&path), client.get::<SessionDetail>(&session)) {
                    Ok(both) => Ok(Box::new(both)),
                    Err(error) => Err(error),
                },
            )
        });
    }

    fn resume(&mut self) {
        if self.context.secrets.is_empty() {
            return;
        }
        let (client, session_id) = (self.client.clone(), self.session_id);
        let body = json!({"client": self.context});
        self.calls.spawn(async move {
            // If it does not help, the session still says that it waits for a key.
            let _tried: Result<Value> = client.post(&format!("/sessions/{session_id}/resume"), &body).await;
            Called::Resumed
        });
    }

    fn called(&mut self, called: Called) -> Result<Option<Ending>> {
        match called {
            Called::Answered(id, Ok(answered)) => {
                let words = if answered.won {
                    let rule = answered
                        .wrote_rule
                        .as_deref()
                        .map_or_else(String::new, |rule| format!("; wrote {}", visible(rule)));
                    format!("{id} {}{rule}", steer::decided(&answered.decision))
                } else {
                    format!("{id} {}", steer::already(&answered.decision, now()))
                };
                self.say([words]);
            }
            Called::Answered(id, Err(error)) => {
                self.say([format!("{id} was not answered: {}", error.message)])
            }
            Called::Stopped(Ok(view)) => {
                let words = match view.stopping.len() {
                    0 => "stopping; ^C again leaves, it goes on there".to_owned(),
                    1 => "stopping 1 worker, its work is committed; ^C again leaves, it goes on there"
                        .to_owned(),
                    n => format!(
                        "stopping {n} workers, their work is committed; ^C again leaves, it goes on there"
                    ),
                };
                self.say([words]);
                if view.already {
                    self.ask_for_the_end();
                }
            }
            Called::Stopped(Err(error)) => self.say([format!("could not be stopped: {}", error.message)]),
            Called::Desk(Ok(views)) => {
                let ours = views.into_iter().filter(|view| view.session_id == self.session_id).collect();
                self.state.learn(ours);
            }
            // The prompt lacks the file's name, no more.
            Called::Desk(Err(_)) | Called::Resumed => {}
            Called::Ended(Ok(both))
                if both.0.verdict.is_some() || self.state.state == SessionState::Ended =>
            {
                let (task, detail) = *both;
                self.alert(Occasion::Ended(self.session_id));
                return Ok(Some(Ending::Verdict {
                    task: Box::new(task),
                    address: self.client.address.clone(),
                    cursor: self.state.cursor,
                    own_turns: self.state.own_turns,
                    session: Box::new(detail.session),
                    interrupted: self.interrupted,
                }));
            }
            Called::Ended(Ok(_)) => {}
            Called::Ended(Err(error)) if error.code == super::client::SERVER_GONE => {
                // The event said so, the server went away before it could be asked: it is asked when it is back.
                let (client, task_id, session_id) = (self.shell.silent(), self.task_id, self.session_id);
                self.calls.spawn(async move {
                    Called::Ended(stream::ask_again(client, task_id, session_id).await.map(Box::new))
                });
            }
            Called::Ended(Err(error)) => return Err(error),
        }
        Ok(None)
    }

    /// Whoever leaves after ^C must not take the stop along: it goes on in the server, so it has to get there.
    async fn deliver_stop(&mut self) {
        if !self.interrupted {
            return;
        }
        let delivered = async {
            while let Some(called) = self.calls.join_next().await {
                if matches!(called, Ok(Called::Stopped(_))) {
                    return;
                }
            }
        };
        let _in_time = tokio::time::timeout(STOP_PATIENCE, delivered).await;
    }

    async fn signalled(&mut self, signal: super::signals::Signal) -> Option<Ending> {
        use super::signals::Signal;
        match signal {
            Signal::Interrupt if self.keys.interrupt() => {}
            Signal::Interrupt if self.interrupted => {
                self.say([summary::left(self.session_id)]);
                return Some(Ending::Left { exit: EXIT_INTERRUPTED });
            }
            Signal::Interrupt => {
                self.interrupted = true;
                self.stopping = true;
                let (client, session_id) = (self.client.clone(), self.session_id);
                self.calls.spawn(async move {
                    let body = json!({"reason": "interrupted by a person"});
                    Called::Stopped(client.post(&format!("/sessions/{session_id}/interrupt"), &body).await)
                });
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
                super::signals::suspend();
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

/// What is said at the end, and the exit code.
pub(crate) async fn conclude(shell: &mut Shell, ending: Ending) -> Result<u8> {
    let (task, session, address, cursor, own_turns, interrupted) = match ending {
        Ending::Left { exit } => return Ok(exit),
        Ending::Verdict { task, session, address, cursor, own_turns, interrupted } => {
            (task, session, address, cursor, own_turns, interrupted)
        }
    };
    let refusal = super::refusal::of(shell, &task, own_turns);
    if shell.is_json() {
        if let Some(refusal) = &refusal {
            let _unheard = shell.err.text(&refusal.render());
        }
        shell.json("session.result", Some(session.session_id), Some(cursor), summary::result(&task))?;
    } else if shell.options.quiet {
        if let Some(text) = task.text.as_deref().filter(|text| !text.trim().is_empty()) {
            let text: String = visible_lines(text.trim_end()).map(|line| format!("{line}\n")).collect();
            shell.out.text(&text)?;
        }
    } else {
        let width = shell.out.is_terminal.then(|| shell.width());
        let links = Links::find(&shell.around, &shell.out, &address).await;
        let workers = task.workers.iter().map(|worker| worker.id.suffix().to_owned());
        let prefixes = Prefixes::over(workers.chain([session.short.clone()]));
        let text = summary::text(&summary::Summary {
            session: &session,
            task: &task,
            width,
            look: Look { glyphs: shell.glyphs, links: &links, prefixes: &prefixes },
            now: now(),
        });
        shell.out.text(&text)?;
    }
    if let (Some(refusal), false) = (&refusal, shell.is_json()) {
        shell.report(refusal);
    }
    Ok(match (interrupted, task.verdict, refusal) {
        (true, ..) => EXIT_INTERRUPTED,
        (false, _, Some(refusal)) => refusal.exit,
        (false, Some(swarm_protocol::Verdict::Complete), None) => 0,
        (false, _, None) => EXIT_FAILURE,
    })
}
