//! One language server that runs: requests and their answers, documents that are open in it, what it says about
//! them unasked, and whether it is still busy with getting to know the project.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use lsp_types::{Diagnostic, InitializeResult, PositionEncodingKind, PublishDiagnosticsParams};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::framing::{self, framed};
use crate::{
    sandbox::WriteScope,
    shell::{Kept, KeptRequest, Shell},
};

/// Messages on their way to a server. A server that takes no more is stuck.
const OUTGOING: usize = 256;
/// For the first answer.
const START_TIME: Duration = Duration::from_secs(30);
/// For any other.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// How long a server that has just started may take until it says that it is busy.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// Files that are open in a server at a time.
const MAX_OPEN: usize = 64;
/// Files whose diagnostics are kept.
const MAX_FILES: usize = 2_000;
/// A server answers so while it is behind what it was told (LSP 3.17: ContentModified, ServerCancelled).
const TRY_AGAIN: [i64; 2] = [-32801, -32802];

/// A server that answers.
pub(super) struct Client {
    outgoing: mpsc::Sender<Vec<u8>>,
    heard: Arc<Heard>,
    next_id: AtomicI64,
    /// Where columns are counted in bytes rather than in units of UTF-16.
    pub(super) counts_bytes: bool,
    documents: tokio::sync::Mutex<HashMap<String, Document>>,
    kept: tokio::sync::Mutex<Option<Kept>>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

struct Document {
    version: i32,
    /// Counts openings: the oldest is closed when there are too many.
    age: u64,
    text: Arc<str>,
}

/// What the server said.
struct Heard {
    pending: Mutex<HashMap<i64, oneshot::Sender<Result<Value, Refusal>>>>,
    diagnostics: Mutex<HashMap<String, Published>>,
    busy: Mutex<HashSet<String>>,
    /// Counts everything that waiters may want to know of.
    news: watch::Sender<u64>,
    n_published: AtomicU64,
    has_been_busy: CancellationToken,
    /// Cancelled when no further answer will come.
    gone: CancellationToken,
    why: Mutex<String>,
}

#[derive(Clone, Default)]
pub(super) struct Published {
    /// Counts all that were published.
    number: u64,
    version: Option<i32>,
    pub(super) list: Vec<Diagnostic>,
}

#[derive(Debug, Clone)]
struct Refusal {
    code: i64,
    message: String,
}

impl Client {
    /// Starts a server and greets it.
    ///
    /// # Errors
    /// For the model: why there is none.
    pub(super) async fn start(
        shell: &Shell,
        command: &[String],
        root: &Path,
        scratch: &Path,
    ) -> Result<Arc<Self>, String> {
        let request = KeptRequest {
            argv: command.iter().map(OsString::from).collect(),
            // Builds for its own use go where they are in nobody's way.
            environment: vec![("CARGO_TARGET_DIR".into(), scratch.join("cargo-target").into())],
            write_scope: WriteScope::ReadOnly,
        };
        let name = command.first().map_or("the language server", String::as_str);
        let started = shell.keep(request).await;
        let (kept, stdin, stdout) =
            started.map_err(|error| format!("{name} could not be started: {error}"))?;
        let (outgoing, queue) = mpsc::channel(OUTGOING);
        let heard = Arc::new(Heard::new());
        let writing = tokio::spawn(write_all(stdin, queue, heard.clone()));
        let reading = tokio::spawn(hear(stdout, outgoing.clone(), heard.clone()));
        let mut client = Self {
            outgoing,
            heard,
            next_id: AtomicI64::new(1),
            counts_bytes: false,
            documents: tokio::sync::Mutex::default(),
            kept: tokio::sync::Mutex::new(Some(kept)),
            _tasks: [AbortOnDropHandle::new(writing), AbortOnDropHandle::new(reading)],
        };
        match client.greet(root).await {
            Ok(()) => Ok(Arc::new(client)),
            Err(problem) => {
                let said = client.last_words().await;
                client.end().await;
                Err(format!("{name} did not start: {problem}{said}"))
            }
        }
    }

    async fn greet(&mut self, root: &Path) -> Result<(), String> {
        let root = uri(root).ok_or("the worktree's path is no URI")?;
        let greeting = json!({
            "processId": null,
            "rootUri": root,
            "workspaceFolders": [{"uri": root, "name": "worktree"}],
            "capabilities": {
                "general": {"positionEncodings": ["utf-8", "utf-16"]},
                "window": {"workDoneProgress": true},
                "workspace": {"configuration": true, "workspaceFolders": true},
                "textDocument": {
                    "synchronization": {"didSave": true},
                    "definition": {"linkSupport": true},
                    "references": {},
                    "hover": {"contentFormat": ["markdown", "plaintext"]},
                    "documentSymbol": {"hierarchicalDocumentSymbolSupport": true},
                    "publishDiagnostics": {"versionSupport": true},
                },
                "experimental": {"serverStatusNotification": true},
            },
            // rust-analyzer: nobody else tells it of files that commands change.
            "initializationOptions": {"files": {"watcher": "server"}},
        });
        let answer = self.request_within("initialize", greeting, START_TIME).await?;
        let answer: InitializeResult = serde_json::from_value(answer)
            .map_err(|error| format!("its greeting is not understood: {error}"))?;
        self.counts_bytes = answer.capabilities.position_encoding == Some(PositionEncodingKind::UTF8);
        self.tell("initialized", json!({}))
    }

    /// Whether it can still answer.
    pub(super) fn is_alive(&self) -> bool {
        !self.heard.gone.is_cancelled()
    }

    /// Asks, and asks again while the server says that it is behind.
    pub(super) async fn request(&self, method: &str, params: Value) -> Result<Value, String> {
        self.request_within(method, params, ANSWER_TIME).await
    }

    async fn request_within(&self, method: &str, params: Value, time: Duration) -> Result<Value, String> {
        let deadline = Instant::now() + time;
        loop {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let (sender, answer) = oneshot::channel();
            locked(&self.heard.pending).insert(id, sender);
            let _asked = Asked { heard: &self.heard, id };
            let seen = *self.heard.news.borrow();
            self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
            let answer = tokio::select! {
                answer = answer => answer.unwrap_or_else(|_| Err(self.why_gone())),
                () = self.heard.gone.cancelled() => Err(self.why_gone()),
                () = tokio::time::sleep_until(deadline) => {
                    // It may stop working on it; whether it does is its affair.
                    let _told = self.tell("$/cancelRequest", json!({"id": id}));
                    return Err(format!("{method} was not answered within {} s", time.as_secs()));
                }
            };
            match answer {
                Ok(answer) => return Ok(answer),
                Err(refusal) if TRY_AGAIN.contains(&refusal.code) => {
                    let mut news = self.heard.news.subscribe();
                    // Something is still going on; the next word of the server is the time to look again.
                    let changed = news.wait_for(|count| *count != seen);
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        return Err(refusal.message);
                    }
                }
                Err(refusal) => return Err(refusal.message),
            }
        }
    }

    fn tell(&self, method: &str, params: Value) -> Result<(), String> {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params}))
    }

    fn send(&self, message: Value) -> Result<(), String> {
        if !self.is_alive() {
            return Err(self.why_gone().message);
        }
        self.outgoing.try_send(framed(&message)).map_err(|_| "it takes no more messages".to_owned())
    }

    fn why_gone(&self) -> Refusal {
        let why = locked(&self.heard.why).clone();
        Refusal { code: 0, message: format!("it ended: {why}") }
    }

    /// Gives the server the file as it is now. Whether it did not have it so before.
    pub(super) async fn show(&self, path: &Path, language: &str, text: &str) -> Result<bool, String> {
        let uri = uri(path).ok_or("the path is no URI")?;
        let mut documents = self.documents.lock().await;
        match documents.get_mut(&uri) {
            Some(document) if &*document.text == text => return Ok(false),
            Some(document) => {
                document.version += 1;
                document.text = text.into();
                let changed = json!({
                    "textDocument": {"uri": uri, "version": document.version},
                    "contentChanges": [{"text": text}],
                });
                self.tell("textDocument/didChange", changed)?;
                self.tell("textDocument/didSave", json!({"textDocument": {"uri": uri}}))?;
            }
            None => {
                let document = json!({"uri": uri, "languageId": language, "version": 1, "text": text});
                self.tell("textDocument/didOpen", json!({"textDocument": document}))?;
                let age = documents.values().map(|document| document.age).max().unwrap_or(0) + 1;
                documents.insert(uri, Document { version: 1, age, text: text.into() });
                let oldest = documents.iter().min_by_key(|(_, document)| document.age);
                let oldest = oldest.map(|(uri, _)| uri.clone()).filter(|_| documents.len() > MAX_OPEN);
                if let Some(uri) = oldest {
                    documents.remove(&uri);
                    self.tell("textDocument/didClose", json!({"textDocument": {"uri": uri}}))?;
                }
            }
        }
        Ok(true)
    }

    /// The files that it was shown.
    pub(super) async fn shown(&self) -> Vec<String> {
        self.documents.lock().await.keys().cloned().collect()
    }

    /// A file that is gone.
    pub(super) async fn forget(&self, uri: &str) -> Result<(), String> {
        self.documents.lock().await.remove(uri);
        self.tell("textDocument/didClose", json!({"textDocument": {"uri": uri}}))
    }

    /// Waits until the server is not busy, at most so long. Whether it is so now.
    pub(super) async fn settled(&self, deadline: Instant) -> bool {
        // A fresh one does not say at once that it is busy.
        let soon = deadline.min(Instant::now() + SETTLE_TIME);
        let _none = tokio::time::timeout_at(soon, self.heard.has_been_busy.cancelled()).await;
        let mut news = self.heard.news.subscribe();
        let idle = news.wait_for(|_| locked(&self.heard.busy).is_empty() || self.heard.gone.is_cancelled());
        tokio::time::timeout_at(deadline, idle).await.is_ok()
    }

    /// What it last said about a file.
    pub(super) fn published(&self, path: &Path) -> Published {
        let known = locked(&self.heard.diagnostics);
        uri(path).and_then(|uri| known.get(&uri).cloned()).unwrap_or_default()
    }

    /// Waits for what it says about a file after `before`, at most so long.
    pub(super) async fn published_after(
        &self,
        path: &Path,
        before: &Published,
        deadline: Instant,
    ) -> Option<Published> {
        let mut news = self.heard.news.subscribe();
        let is_new = |published: &Published| published.number > before.number;
        let told = news.wait_for(|_| is_new(&self.published(path)) || self.heard.gone.is_cancelled());
        let waited = tokio::time::timeout_at(deadline, told).await;
        waited.ok().map(|_| self.published(path)).filter(is_new)
    }

    /// Whether it has ever said something about this file.
    pub(super) fn has_published(&self, path: &Path) -> bool {
        self.published(path).number > 0
    }

    /// What it wrote to its standard error.
    async fn last_words(&self) -> String {
        let mut kept = self.kept.lock().await;
        let Some(kept) = kept.as_mut() else { return String::new() };
        if self.heard.gone.is_cancelled() {
            // It closed its output, so its end is near, and with it all it has to say.
            let _late = tokio::time::timeout(SETTLE_TIME, kept.ended()).await;
        }
        match kept.stderr() {
            words if words.is_empty() => String::new(),
            words => format!(". It said: {}", words.chars().take(1_000).collect::<String>()),
        }
    }

    /// Ends it and all it started.
    pub(super) async fn end(&self) {
        // It is given no time to be polite: it holds nothing that is worth keeping.
        if let Some(kept) = self.kept.lock().await.take() {
            kept.end().await;
        }
    }
}

impl Heard {
    fn new() -> Self {
        Self {
            pending: Mutex::default(),
            diagnostics: Mutex::default(),
            busy: Mutex::default(),
            news: watch::Sender::new(0),
            n_published: AtomicU64::new(0),
            has_been_busy: CancellationToken::new(),
            gone: CancellationToken::new(),
            why: Mutex::default(),
        }
    }

    fn take(&self, mut message: Value, outgoing: &mpsc::Sender<Vec<u8>>) {
        let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
        let id = message.get("id").cloned();
        match (method, id) {
            (Some(method), Some(id)) => {
                let answer = self.answer_to(&method, &message["params"]);
                let answer = match answer {
                    Some(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                    None => json!({
                        "jsonrpc": "2.0", "id": id,
                        "error": {"code": -32601, "message": "not offered by this client"},
                    }),
                };
                // A server that takes nothing gets no answer either.
                drop(outgoing.try_send(framed(&answer)));
            }
            (Some(method), None) => self.note(&method, message["params"].take()),
            (None, Some(id)) => {
                let waiting = id.as_i64().and_then(|id| locked(&self.pending).remove(&id));
                let answer = match message.get("error").filter(|error| !error.is_null()) {
                    Some(error) => Err(Refusal {
                        code: error["code"].as_i64().unwrap_or_default(),
                        message: error["message"].as_str().unwrap_or("it refused").to_owned(),
                    }),
                    None => Ok(message.get_mut("result").map(Value::take).unwrap_or_default()),
                };
                // Who asked may have gone.
                drop(waiting.map(|waiting| waiting.send(answer)));
            }
            (None, None) => {}
        }
        self.news.send_modify(|count| *count += 1);
    }

    fn answer_to(&self, method: &str, params: &Value) -> Option<Value> {
        match method {
            "workspace/configuration" => {
                let n_items = params["items"].as_array().map_or(0, Vec::len);
                Some(Value::Array(vec![Value::Null; n_items]))
            }
            "client/registerCapability"
            | "client/unregisterCapability"
            | "window/workDoneProgress/create"
            | "window/showMessageRequest" => Some(Value::Null),
            _ => None,
        }
    }

    fn note(&self, method: &str, params: Value) {
        match method {
            "textDocument/publishDiagnostics" => {
                let Ok(params) = serde_json::from_value::<PublishDiagnosticsParams>(params) else { return };
                let number = self.n_published.fetch_add(1, Ordering::Relaxed) + 1;
                let published = Published { number, version: params.version, list: params.diagnostics };
                let mut known = locked(&self.diagnostics);
                let uri = params.uri.as_str().to_owned();
                let older = known.get(&uri).is_some_and(|before| published.version < before.version);
                if !older && (known.contains_key(&uri) || known.len() < MAX_FILES) {
                    known.insert(uri, published);
                }
            }
            "$/progress" => {
                let token = params["token"].to_string();
                match params["value"]["kind"].as_str() {
                    Some("begin") => self.is_busy(token, true),
                    Some("end") => self.is_busy(token, false),
                    _ => {}
                }
            }
            "experimental/serverStatus" => {
                self.is_busy("status".to_owned(), params["quiescent"] == json!(false));
            }
            _ => {}
        }
    }

    fn is_busy(&self, with: String, is_busy: bool) {
        let mut busy = locked(&self.busy);
        if is_busy {
            busy.insert(with)
        } else {
            busy.remove(&with)
        };
        self.has_been_busy.cancel();
    }

    fn end(&self, why: String) {
        let mut said = locked(&self.why);
        if said.is_empty() {
            *said = why;
        }
        drop(said);
        self.gone.cancel();
        locked(&self.pending).clear();
        self.news.send_modify(|count| *count += 1);
    }
}

/// Takes a request from the table, however the wait for its answer ends.
struct Asked<'a> {
    heard: &'a Heard,
    id: i64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        locked(&self.heard.pending).remove(&self.id);
    }
}

async fn write_all(mut stdin: ChildStdin, mut queue: mpsc::Receiver<Vec<u8>>, heard: Arc<Heard>) {
    while let Some(bytes) = queue.recv().await {
        if let Err(error) = stdin.write_all(&bytes).await {
            heard.end(format!("it takes no input ({error})"));
            return;
        }
    }
}

async fn hear(stdout: ChildStdout, outgoing: mpsc::Sender<Vec<u8>>, heard: Arc<Heard>) {
    let mut stream = BufReader::new(stdout);
    loop {
        match framing::read(&mut stream).await {
            Ok(message) => heard.take(message, &outgoing),
            Err(error) => return heard.end(swarm_protocol::error_chain(&error)),
        }
    }
}

/// A path as servers name it.
pub(super) fn uri(path: &Path) -> Option<String> {
    reqwest::Url::from_file_path(path).ok().map(String::from)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
