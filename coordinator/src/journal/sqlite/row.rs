//! Rows of `events`, and what readers are shown in the place of a damaged one.

use rusqlite::{Connection, Params};
use swarm_protocol::{
    Seq, SessionId, Timestamp,
    event::{Event, EventLine},
};

use super::{DAMAGED, Read, StorageFault};

/// The columns of [`Row`], in order.
pub(crate) const ROW: &str = "position, session_id, seq, at_ms, body";

/// A row of `events` as it is stored.
pub(crate) struct Row {
    pub(super) position: u64,
    session: Vec<u8>,
    pub(super) seq: u64,
    at_ms: i64,
    body: Vec<u8>,
}

impl Row {
    pub(crate) fn from_sql(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            position: row.get::<_, i64>(0)? as u64,
            // As bytes: text that is no UTF-8 is one damaged row, and no reason to read none.
            session: bytes(row, 1)?,
            seq: row.get::<_, i64>(2)? as u64,
            at_ms: row.get(3)?,
            body: bytes(row, 4)?,
        })
    }

    fn session_id(&self) -> Result<SessionId, String> {
        let text = std::str::from_utf8(&self.session).map_err(|error| error.to_string())?;
        text.parse().map_err(|error| format!("{error}"))
    }

    /// What readers are shown in the place of this row.
    fn marker(&self, problem: &str) -> EventLine {
        EventLine {
            seq: Some(Seq(self.seq)),
            at: Timestamp::from_millis(self.at_ms),
            session_id: self.session_id().ok(),
            position: Some(self.position),
            event: Event::Error {
                code: DAMAGED.to_owned(),
                message: format!(
                    "a row of the journal cannot be read: {problem}; to repair it, stop the server and put this row \
                     of $SWARM_HOME/journal.sqlite back from a copy (table events, position {})",
                    self.position
                ),
                worker_id: None,
            },
        }
    }

    /// The event; `None` for a kind this build does not know (readers skip those).
    pub(crate) fn parse(&self) -> Result<Option<EventLine>, String> {
        let session_id = self.session_id()?;
        let event = match serde_json::from_slice::<Event>(&self.body) {
            Ok(event) => event,
            Err(error)
                if error.to_string().contains("unknown variant") && error.to_string().contains("kind") =>
            {
                return Ok(None);
            }
            Err(error) => return Err(format!("event {} of session {session_id}: {error}", self.seq)),
        };
        Ok(Some(EventLine {
            seq: Some(Seq(self.seq)),
            at: Timestamp::from_millis(self.at_ms),
            session_id: Some(session_id),
            position: Some(self.position),
            event,
        }))
    }
}

fn bytes(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    Ok(row.get_ref(column)?.as_bytes()?.to_vec())
}

/// Reads the rows that `which` selects; `cursor` is where the last of them stands.
pub(super) fn read(
    connection: &Connection,
    which: &str,
    params: impl Params,
    cursor: impl Fn(&Row) -> u64,
) -> Result<Read, StorageFault> {
    let mut statement = connection.prepare_cached(&format!("SELECT {ROW} FROM events WHERE {which}"))?;
    let rows: Vec<Row> = statement.query_map(params, Row::from_sql)?.collect::<Result<_, _>>()?;
    Ok(collect(rows, cursor))
}

fn collect(rows: Vec<Row>, cursor: impl Fn(&Row) -> u64) -> Read {
    let mut read = Read::default();
    for row in rows {
        read.last = cursor(&row);
        match row.parse() {
            Ok(Some(line)) => read.lines.push(line),
            Ok(None) => {}
            Err(problem) => {
                read.lines.push(row.marker(&problem));
                let (count, _) = read.damaged.get_or_insert((0, problem));
                *count += 1;
            }
        }
    }
    read
}
