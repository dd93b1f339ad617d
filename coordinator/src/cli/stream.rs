//! The events of a session without a gap: when the server goes away it is found, or started again, and told
//! the keys it has lost.

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use swarm_protocol::{
    Seq, SessionId, TaskId,
    api::{ClientContext, SessionDetail, TaskView},
};
use tokio::sync::mpsc;

use super::{
    client::{Client, SERVER_GONE, StreamItem},
    error::{CliError, Result},
    server_process,
    shell::Shell,
};

/// How often a server is looked for before that is given up.
const TRIES: u32 = 5;

/// How long to wait before the first look; twice as long before each further one.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// What a reader of events brings.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// An event.
    Event(Value),
    /// The server is away.
    Lost,
    /// It is back.
    Back(Client),
    /// It will not come back.
    Failed(CliError),
}

/// Reads until nobody wants to know more, or the server cannot be had.
pub(crate) async fn read(
    shell: Shell,
    mut client: Client,
    session_id: SessionId,
    mut cursor: Seq,
    context: ClientContext,
    sender: mpsc::Sender<Arrival>,
) {
    loop {
        let broke = match client.events(session_id, cursor).await {
            Ok(mut events) => loop {
                match events.next().await {
                    Some(Ok(StreamItem::Event(value))) => {
                        if let Some(seq) = value.get("seq").and_then(Value::as_u64) {
                            cursor = Seq(seq);
                        }
                        if sender.send(Arrival::Event(value)).await.is_err() {
                            return;
                        }
                    }
                    // Live news were lost; what counts goes on from the journal in the same stream.
                    Some(Ok(StreamItem::Behind)) => {}
                    Some(Err(error)) => break error,
                    None => break CliError::new(SERVER_GONE, "the server's events ended"),
                }
            },
            Err(error) => error,
        };
        if broke.code != SERVER_GONE {
            // Nobody listens any more if this is not heard.
            let _unheard = sender.send(Arrival::Failed(broke)).await;
            return;
        }
        if sender.send(Arrival::Lost).await.is_err() {
            return;
        }
        match find_again(&shell).await {
            Ok((found, started)) => {
                client = found;
                if started && !context.secrets.is_empty() {
                    let body = json!({"client": context});
                    // A session that needs no key refuses nothing that matters here.
                    let _told: Result<Value> =
                        client.post(&format!("/sessions/{session_id}/resume"), &body).await;
                }
                if sender.send(Arrival::Back(client.clone())).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                let _unheard = sender.send(Arrival::Failed(error)).await;
                return;
            }
        }
    }
}

async fn find_again(shell: &Shell) -> Result<(Client, bool)> {
    let mut wait = FIRST_WAIT;
    let mut tries = 0;
    loop {
        tokio::time::sleep(wait).await;
        tries += 1;
        match server_process::find_or_start(shell).await {
            Ok(found) => return Ok((found.client, found.started)),
            Err(error) if tries >= TRIES || error.code == "other_version" => return Err(error),
            Err(_) => wait *= 2,
        }
    }
}

/// Asks for the end of a task, of a server that was away a moment ago.
pub(crate) async fn ask_again(
    shell: Shell,
    task_id: TaskId,
    session_id: SessionId,
) -> Result<(TaskView, SessionDetail)> {
    let (client, _) = find_again(&shell).await?;
    let (task, session) = (format!("/tasks/{task_id}"), format!("/sessions/{session_id}"));
    tokio::try_join!(client.get(&task), client.get(&session))
}
