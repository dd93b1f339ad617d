//! Workers as the server sees them: their life, their processes, their socket, what their end is worth.

pub(crate) mod finish;
pub(crate) mod lifecycle;
pub(crate) mod outcome;
pub(crate) mod run;
pub(crate) mod socket;
pub(crate) mod tmux;
