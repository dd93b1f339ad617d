//! An event with its envelope: the flat JSON object of the wire, and back.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{EVENT_VERSION, Event};
use crate::{
    ids::{Seq, SessionId},
    time::Timestamp,
};

/// An event with its envelope.
#[derive(Clone, Debug, PartialEq)]
pub struct EventLine {
    /// Position in the session's journal; none for live events.
    pub seq: Option<Seq>,
    /// When.
    pub at: Timestamp,
    /// In which session; none for errors before there is one.
    pub session_id: Option<SessionId>,
    /// Position among all sessions of the server; none for live events.
    pub position: Option<u64>,
    /// What.
    pub event: Event,
}

/// Why a line is no event.
#[derive(Debug, thiserror::Error)]
pub enum EventLineError {
    /// Not JSON, or fields of a wrong shape.
    #[error("a line that is no event")]
    Malformed(#[from] serde_json::Error),
    /// Of a later schema.
    #[error("an event of version {0}, newer than this build")]
    Version(u64),
}

impl EventLine {
    /// The flat JSON object.
    pub fn to_json(&self) -> Result<Value, serde_json::Error> {
        let Self { seq, at, session_id, position, event } = self;
        let mut line = Map::new();
        line.insert("v".to_owned(), EVENT_VERSION.into());
        line.insert("seq".to_owned(), serde_json::to_value(seq)?);
        line.insert("at".to_owned(), serde_json::to_value(at)?);
        line.insert("session_id".to_owned(), serde_json::to_value(session_id)?);
        if let Some(position) = position {
            line.insert("position".to_owned(), (*position).into());
        }
        if let Value::Object(fields) = serde_json::to_value(event)? {
            line.extend(fields);
        }
        Ok(Value::Object(line))
    }

    /// Back from the flat JSON object. An unknown kind is `None`: readers skip it.
    pub fn from_json(line: Value) -> Result<Option<Self>, EventLineError> {
        #[derive(Deserialize)]
        struct Envelope {
            v: u64,
            seq: Option<Seq>,
            at: Timestamp,
            session_id: Option<SessionId>,
            #[serde(default)]
            position: Option<u64>,
            kind: String,
        }
        let envelope: Envelope = serde_json::from_value(line.clone())?;
        if envelope.v > u64::from(EVENT_VERSION) {
            return Err(EventLineError::Version(envelope.v));
        }
        match serde_json::from_value::<Event>(line) {
            Ok(event) => Ok(Some(Self {
                seq: envelope.seq,
                at: envelope.at,
                session_id: envelope.session_id,
                position: envelope.position,
                event,
            })),
            Err(error) if error.to_string().contains(&format!("unknown variant `{}`", envelope.kind)) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::SessionState;

    #[test]
    fn a_line_is_flat_and_comes_back() {
        let line = EventLine {
            seq: Some(Seq(412)),
            at: Timestamp::from_millis(1_796_060_683_031),
            session_id: Some("01a22d8c-a610-7b1d-9a44-52f07c1d09e2".parse().unwrap()),
            position: Some(9),
            event: Event::SessionState {
                state: SessionState::Active,
                waiting_for: None,
                reason: "a task".to_owned(),
            },
        };
        let json = line.to_json().unwrap();
        assert_eq!(
            json.to_string(),
            "{\"v\":1,\"seq\":412,\"at\":\"2026-11-30T17:44:43.031Z\",\
             \"session_id\":\"01a22d8c-a610-7b1d-9a44-52f07c1d09e2\",\"position\":9,\
             \"kind\":\"session.state\",\"state\":\"active\",\"reason\":\"a task\"}"
        );
        assert_eq!(EventLine::from_json(json).unwrap(), Some(line));
    }

    #[test]
    fn unknown_kinds_are_skipped_and_newer_versions_refused() {
        let unknown =
            serde_json::json!({"v":1,"seq":1,"at":"2026-11-30T17:44:43.031Z","session_id":null,"kind":"x.y"});
        assert_eq!(EventLine::from_json(unknown).unwrap(), None);
        let newer =
            serde_json::json!({"v":2,"seq":1,"at":"2026-11-30T17:44:43.031Z","session_id":null,"kind":"x.y"});
        assert!(matches!(EventLine::from_json(newer), Err(EventLineError::Version(2))));
    }
}
