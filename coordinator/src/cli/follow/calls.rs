//! What following asks of the server beside the events: answers, stops, the desk, the verdict.

use serde_json::{Value, json};
use swarm_protocol::{
    PermissionRequestId, SessionState,
    api::{AnswerPermission, AnsweredPermission, PermissionView, SessionDetail, StopView, TaskView},
};

use super::{Ending, Follower, STOP_PATIENCE};
use crate::cli::{
    alert::Occasion, client::SERVER_GONE, commands::answers, error::Result, shell::now, stream, text::visible,
};

/// What a call to the server that following made brought.
#[derive(Debug)]
pub(super) enum Called {
    Answered(PermissionRequestId, Result<AnsweredPermission>),
    Stopped(Result<StopView>),
    Desk(Result<Vec<PermissionView>>),
    Ended(Result<Box<(TaskView, SessionDetail)>>),
    Resumed,
}

impl Follower<'_> {
    pub(super) fn answer(&mut self, id: PermissionRequestId, body: AnswerPermission) {
        self.own_answers.push(id.clone());
        let client = self.client.clone();
        self.calls.spawn(async move {
            let answered = client.post(&format!("/permissions/{id}"), &body).await;
            Called::Answered(id, answered)
        });
    }

    pub(super) fn interrupt_session(&mut self) {
        let (client, session_id) = (self.client.clone(), self.session_id);
        self.calls.spawn(async move {
            let body = json!({"reason": "interrupted by a person"});
            Called::Stopped(client.post(&format!("/sessions/{session_id}/interrupt"), &body).await)
        });
    }

    pub(super) fn ask_the_desk(&mut self) {
        let client = self.client.clone();
        self.calls.spawn(async move { Called::Desk(client.get("/permissions").await) });
    }

    pub(super) fn ask_for_the_end(&mut self) {
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

    pub(super) fn resume(&mut self) {
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

    pub(super) fn called(&mut self, called: Called) -> Result<Option<Ending>> {
        match called {
            Called::Answered(id, Ok(answered)) => {
                let words = if answered.won {
                    let rule = answered
                        .wrote_rule
                        .as_deref()
                        .map_or_else(String::new, |rule| format!("; wrote {}", visible(rule)));
                    format!("{id} {}{rule}", answers::decided(&answered.decision))
                } else {
                    format!("{id} {}", answers::already(&answered.decision, now()))
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
            Called::Ended(Err(error)) if error.code == SERVER_GONE => {
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
    pub(super) async fn deliver_stop(&mut self) {
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
}
