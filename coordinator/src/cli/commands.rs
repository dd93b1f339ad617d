//! One file for commands that belong together; what they share stands here.

use super::{
    client::Client,
    error::{CliError, Result},
    ids::Known,
    server_process,
    shell::Shell,
};

pub(crate) mod answers;
pub(crate) mod attach;
pub(crate) mod cost;
pub(crate) mod doctor;
pub(crate) mod logs;
pub(crate) mod permissions;
pub(crate) mod ps;
pub(crate) mod review;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod show;
pub(crate) mod steer;

/// A server and everything that has an id there.
pub(crate) struct Place {
    pub(crate) client: Client,
    pub(crate) known: Known,
}

/// The server for a command about an id. A home that never saw a session knows no id, and nothing is started.
pub(crate) async fn connect(shell: &Shell, id: &str) -> Result<Place> {
    match server_process::for_reading(shell).await? {
        Some(found) => {
            let known = Known::load(shell, &found.client).await?;
            Ok(Place { client: found.client, known })
        }
        None => Err(CliError::new("unknown_id", format!("no worker or session `{id}`"))
            .cause(format!("nothing has run yet with {}", shell.path(shell.home.root())))
            .hint("swarm run PROMPT")),
    }
}

/// The refusal of what comes later.
pub(crate) fn later(command: &str, what: &str) -> CliError {
    let message = if what.is_empty() {
        format!("`swarm {command}` is not available yet")
    } else {
        format!("`swarm {command} {what}` is not available yet")
    };
    CliError::new("not_available", message)
        .hint(format!("swarm {}--help", if what.is_empty() { String::new() } else { format!("{command} ") }))
}

/// The local time of day.
pub(crate) fn clock(at: swarm_protocol::Timestamp) -> String {
    match jiff::Timestamp::from_millisecond(at.as_millis()) {
        Ok(time) => time.to_zoned_datetime(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string(),
        Err(_) => String::new(),
    }
}
