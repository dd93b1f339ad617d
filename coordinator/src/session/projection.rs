//! The coordinator's own JSONL file: its conversation, for people and tools (spec 1.5, 10.2). A projection: the
//! journal wins, nothing reads it back, and it is written anew whenever it cannot be continued.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use serde_json::{Value, json};
use swarm_protocol::{
    SessionId, Timestamp,
    event::{Event, EventLine},
    message::Message,
};
use uuid::Uuid;

/// The file of one session.
pub(crate) struct Projection {
    path: PathBuf,
    file: Option<File>,
    parent: Option<Uuid>,
    /// Messages of the request under way; they count when its turn is committed.
    added: Vec<Message>,
    /// The file could not be written: said once, and left alone.
    failed: bool,
}

impl Projection {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, file: None, parent: None, added: Vec::new(), failed: false }
    }

    /// Takes the file up from nothing: what follows is every line of the session.
    pub(crate) fn restart(&mut self) {
        // Absent or not: the lines that come make it anew.
        std::fs::remove_file(&self.path).ok();
    }

    /// Writes what an event adds to the conversation.
    pub(crate) fn write(&mut self, line: &EventLine) {
        let Some(session) = line.session_id else { return };
        let records = self.records(session, line.at, &line.event);
        if records.is_empty() || self.failed {
            return;
        }
        let mut text = String::new();
        for record in records {
            text.push_str(&record.to_string());
            text.push('\n');
        }
        let written = self.open().and_then(|file| file.write_all(text.as_bytes()));
        if let Err(error) = written {
            self.failed = true;
            tracing::warn!(%error, path = %self.path.display(), "a session's JSONL file is not written any more");
        }
    }

    fn open(&mut self) -> std::io::Result<&mut File> {
        if self.file.is_none() {
            if let Some(parent) = self.path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
            self.file = Some(file);
        }
        self.file.as_mut().ok_or_else(|| std::io::Error::other("the file was opened a line above"))
    }

    fn records(&mut self, session: SessionId, at: Timestamp, event: &Event) -> Vec<Value> {
        match event {
            Event::CoordinatorRequest { blocks, .. } => {
                self.added.clone_from(blocks);
                Vec::new()
            }
            Event::CoordinatorTurn { assistant, results, .. } => {
                let mut messages = std::mem::take(&mut self.added);
                messages.extend(assistant.clone());
                messages.extend(results.clone());
                messages.into_iter().map(|message| self.record(session, at, &message)).collect()
            }
            Event::CoordinatorNote { message } => vec![self.record(session, at, message)],
            Event::CoordinatorCompacted { boundary } => {
                let logical_parent = self.parent.take();
                let uuid = Uuid::now_v7();
                self.parent = Some(uuid);
                let mut records = vec![json!({
                    "type": "system", "subtype": "compact_boundary", "uuid": uuid, "parentUuid": null,
                    "logicalParentUuid": logical_parent, "sessionId": session, "timestamp": at,
                    "compactMetadata": {"trigger": boundary.trigger, "preTokens": boundary.pre_tokens,
                                        "postTokens": boundary.post_tokens},
                })];
                records.extend(boundary.messages.iter().map(|message| self.record(session, at, message)));
                records
            }
            _ => Vec::new(),
        }
    }

    fn record(&mut self, session: SessionId, at: Timestamp, message: &Message) -> Value {
        let uuid = Uuid::now_v7();
        let parent = self.parent.replace(uuid);
        json!({
            "type": message.role, "uuid": uuid, "parentUuid": parent, "sessionId": session, "timestamp": at,
            "isSidechain": false, "message": message,
        })
    }
}

#[cfg(test)]
mod tests {
    use swarm_protocol::{Seq, record::StopReason};

    use super::*;
    use crate::session::samples;

    #[test]
    fn a_request_counts_when_its_turn_is_committed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.jsonl");
        let mut projection = Projection::new(path.clone());
        let mut seq = 0;
        let mut write = |event| {
            seq += 1;
            projection.write(&samples::line(Seq(seq), event));
        };
        let request = |request, text: &str| Event::CoordinatorRequest {
            request,
            model: "demo".to_owned(),
            entries: vec![],
            messages: vec![],
            blocks: vec![Message::user_text(text)],
        };
        write(request(1, "lost"));
        write(request(2, "go"));
        write(Event::CoordinatorTurn {
            request: 2,
            turn: 1,
            assistant: Some(Message::assistant(vec![swarm_protocol::Block::text("done")])),
            results: None,
            model: "demo".to_owned(),
            stop_reason: StopReason::EndTurn,
            usage: Default::default(),
            cost: Default::default(),
            entries: vec![],
            recovered: false,
        });
        let lines: Vec<Value> = std::fs::read_to_string(path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["type"], &lines[1]["type"]), (&json!("user"), &json!("assistant")));
        assert_eq!(lines[1]["parentUuid"], lines[0]["uuid"]);
        assert_eq!(lines[0]["message"]["content"][0]["text"], "go");
    }
}
