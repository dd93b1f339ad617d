//! A model provider for tests: the real wire formats, scripted replies, faults on demand.
//!
//! It runs on a thread and a runtime of its own, so that a test may block. Every request is recorded and checked
//! against what providers demand and against the prefix rule; a request that breaks a rule is answered with 400 and
//! remembered, and the server panics about it when it is dropped. So no test passes by accident.
//!
//! ```
//! use integration_tests::{ModelServer, Reply, when};
//! use serde_json::json;
//!
//! let server = ModelServer::start();
//! server.agent("fix the login", [
//!     Reply::new().text("Looking.").tool("Read", json!({"file_path": "login.rs"})),
//!     Reply::overloaded(),
//!     Reply::say("Done.").gate("may end"),
//! ]);
//! server.rule(when().user_contains("summarise").lacks_tool("Read"), "A summary.");
//! server.on(|request| request.tool_result("toolu_1").map(|result| Reply::say(result)));
//! assert!(server.url().starts_with("http://127.0.0.1:"));
//! ```

mod cache;
mod charge;
mod control;
mod gate;
mod http;
mod invariants;
mod listener;
mod normalise;
mod prefix;
mod record;
mod render;
mod reply;
mod script;
mod shared;
mod wire;

#[cfg(test)]
mod tests;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::shared::{Shared, State};
pub use self::{
    cache::Clock,
    gate::Gate,
    record::{Api, Block, NormalMessage, Outcome, RecordedRequest, Role},
    reply::{
        Cut, ErrorBody, How, HttpReply, OpenAiQuirks, Part, Reply, Thinking, ToolUse, UnknownEvent, Usage,
        Wire,
    },
    script::{Matcher, Rule, Script, when},
};

/// How long [`ModelServer::wait_for`] waits.
const WAIT_DEADLINE: Duration = Duration::from_secs(60);

pub type Request = Arc<RecordedRequest>;

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    port: u16,
    api_key: Option<String>,
    models: Vec<String>,
    check_prefix: bool,
}

/// Settings of a server; [`ModelServer::builder`].
#[derive(Debug)]
pub struct Builder {
    settings: Settings,
    window: Option<u64>,
}

impl Builder {
    /// Left out: a free port.
    pub fn port(mut self, port: u16) -> Self {
        self.settings.port = port;
        self
    }

    /// Any other key is answered with 401.
    pub fn api_key(mut self, key: &str) -> Self {
        self.settings.api_key = Some(key.to_owned());
        self
    }

    /// What the model list names.
    pub fn models(mut self, ids: &[&str]) -> Self {
        self.settings.models = ids.iter().map(|id| (*id).to_owned()).collect();
        self
    }

    /// Context window in tokens (4 bytes each): a longer prompt is refused as too long.
    pub fn window(mut self, tokens: u64) -> Self {
        self.window = Some(tokens);
        self
    }

    /// For tests whose requests are no conversations.
    pub fn without_prefix_rule(mut self) -> Self {
        self.settings.check_prefix = false;
        self
    }

    /// # Panics
    /// When the port cannot be bound.
    pub fn start(self) -> ModelServer {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, self.settings.port));
        let listener = listener.expect("the model server's port can be bound");
        let address = listener.local_addr().expect("a bound listener has an address");
        listener.set_nonblocking(true).expect("a fresh listener can be made non-blocking");
        let shared = Arc::new(Shared {
            settings: self.settings,
            state: Mutex::new(State { window: self.window, ..State::default() }),
            changes: watch::Sender::new(0),
            gates: gate::Gates::default(),
            prefixes: Mutex::default(),
            cache: cache::Cache::default(),
            clock: Clock::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        });
        let serving = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("model-server".to_owned());
        let thread = thread.spawn(move || serve(serving, listener));
        ModelServer { shared, address, thread: Some(thread.expect("a thread can be started")) }
    }
}

fn serve(shared: Arc<Shared>, listener: std::net::TcpListener) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be built");
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener);
        let listener = listener::FaultListener(listener.expect("the listener is non-blocking"));
        let app = http::router(Arc::clone(&shared));
        let app = app.into_make_service_with_connect_info::<listener::Connection>();
        let stop = shared.stop.clone();
        // Open connections are dropped with the runtime: a client may hold one for ever.
        tokio::select! {
            served = async { axum::serve(listener, app).await } => served.expect("the listener accepts"),
            () = stop.cancelled() => {}
        }
        shared.tasks.close();
        shared.tasks.wait().await;
    });
}

/// The running server; stops when dropped.
#[derive(Debug)]
pub struct ModelServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl ModelServer {
    pub fn builder() -> Builder {
        let models = ["claude-opus-5-5", "claude-haiku-5-5", "test-model"];
        Builder {
            settings: Settings {
                port: 0,
                api_key: None,
                models: models.map(str::to_owned).to_vec(),
                check_prefix: true,
            },
            window: None,
        }
    }

    pub fn start() -> Self {
        Self::builder().start()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What goes into `ANTHROPIC_BASE_URL`; OpenAI's base is this with `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds a rule that holds for ever.
    pub fn rule(&self, when: Matcher, reply: impl Into<Reply>) -> &Self {
        self.add(when, None, reply.into())
    }

    /// Adds a rule for one request.
    pub fn once(&self, when: Matcher, reply: impl Into<Reply>) -> &Self {
        self.add(when, Some(1), reply.into())
    }

    /// Adds a rule for so many requests.
    pub fn times(&self, n: usize, when: Matcher, reply: impl Into<Reply>) -> &Self {
        self.add(when, Some(n), reply.into())
    }

    fn add(&self, when: Matcher, times: Option<usize>, reply: Reply) -> &Self {
        self.shared.lock().rules.push(Rule { when, times, reply });
        self
    }

    /// The replies to one agent, known by a part of its first user message, in order; each is used once.
    pub fn agent(&self, key: &str, replies: impl IntoIterator<Item = Reply>) -> &Self {
        for reply in replies {
            self.once(when().agent(key), reply);
        }
        self
    }

    /// Adds a rule in Rust. It runs under the server's lock, so it must not call the server.
    pub fn on(&self, responder: impl Fn(&RecordedRequest) -> Option<Reply> + Send + Sync + 'static) -> &Self {
        self.shared.lock().rules.push_closure(Arc::new(responder));
        self
    }

    /// Adds the rules of a script.
    ///
    /// # Errors
    /// When it is no script.
    pub fn script(&self, json: &str) -> serde_json::Result<()> {
        self.shared.add_script(serde_json::from_str(json)?);
        Ok(())
    }

    pub fn clear_rules(&self) {
        self.shared.lock().rules.clear();
    }

    /// The context window from now on.
    pub fn set_window(&self, tokens: Option<u64>) {
        self.shared.lock().window = tokens;
    }

    /// From now on replies that name no usage are charged for a random part of the output that their request allows.
    pub fn charge_randomly(&self, seed: u64) {
        self.shared.lock().charges = Some(seed);
    }

    pub fn gate(&self, name: &str) -> Gate {
        self.shared.gates.get(name)
    }

    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// The next change in a conversation whose user text contains this (in any, if none) is no violation.
    pub fn declare_break(&self, conversation: Option<&str>) {
        self.shared.declare_break(conversation.map(str::to_owned), Some(1));
    }

    /// As [`ModelServer::declare_break`], for every change to come.
    pub fn allow_breaks(&self, conversation: Option<&str>) {
        self.shared.declare_break(conversation.map(str::to_owned), None);
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests()
    }

    /// Requests of the agent whose first user message contains this.
    pub fn requests_of(&self, agent: &str) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|request| request.agent_key.contains(agent));
        requests
    }

    /// The most requests that were in flight at one time.
    pub fn peak(&self) -> usize {
        self.shared.peak()
    }

    /// Waits until `ready` finds in the requests what it looks for; it is asked again at each arrival and end.
    ///
    /// # Panics
    /// When it has not after a minute; lists the requests.
    pub async fn wait_for<T>(&self, what: &str, mut ready: impl FnMut(&[Request]) -> Option<T>) -> T {
        let mut changes = self.shared.changes.subscribe();
        let search = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = ready(&self.requests()) {
                    return found;
                }
                // The sender lives as long as `self`.
                let _never_closed = changes.changed().await;
            }
        };
        if let Ok(found) = tokio::time::timeout(WAIT_DEADLINE, search).await {
            return found;
        }
        let seen = self.requests();
        let seen: Vec<String> = seen.iter().map(|request| line(request)).collect();
        let violations = self.violations();
        panic!(
            "waited {WAIT_DEADLINE:?} in vain for {what}; requests:\n{}\nviolations: {violations:#?}",
            seen.join("\n"),
        );
    }

    /// Waits for the `n`-th request (from 0) of an agent.
    pub async fn wait_for_request(&self, agent: &str, n: usize) -> Request {
        self.wait_for(&format!("request {n} of agent `{agent}`"), |requests| {
            let mut of_agent = requests.iter().filter(|request| request.agent_key.contains(agent));
            of_agent.nth(n).cloned()
        })
        .await
    }

    pub fn violations(&self) -> Vec<String> {
        self.shared.violations()
    }

    /// For tests that provoke them: the violations so far, no longer held against the server.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().violations)
    }

    /// # Panics
    /// When a request broke a rule.
    pub fn assert_clean(&self) {
        let violations = self.violations();
        assert!(violations.is_empty(), "the model server saw violations:\n{}", violations.join("\n"));
    }

    /// Returns when the server was told to stop through its control endpoint.
    pub async fn stopped(&self) {
        self.shared.stop.cancelled().await;
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.shared.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(!matches!(ended, Some(Err(_))), "the model server panicked");
            self.assert_clean();
        }
    }
}

fn line(request: &RecordedRequest) -> String {
    let key: String = request.agent_key.chars().take(80).collect();
    let (turn, outcome) = (request.turn(), request.outcome());
    format!("  {} {} turn {turn} {outcome:?} `{key}`", request.id, request.model)
}
