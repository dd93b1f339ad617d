//! A tmux window per worker, for who wishes to watch: it runs the viewer `swarm attach ID`. tmux missing or
//! dying never touches a worker.

use std::process::Stdio;

use swarm_protocol::WorkerId;

use crate::server::Shared;

/// Opens a window that shows the worker, unless one is there.
pub(crate) async fn show(shared: &Shared, worker_id: &WorkerId, name: &str) {
    let socket = format!("swarm-{}", shared.home.short_hash());
    // tmux takes `:` and `.` in window names for addresses.
    let window: String = format!("{} {}", worker_id.suffix(), name)
        .chars()
        .filter(|c| !c.is_control() && !":.#".contains(*c))
        .take(30)
        .collect();
    let program = shared.swarm_binary.to_string_lossy().into_owned();
    let viewer = [program.as_str(), "attach", worker_id.as_str()];
    let has_server = tmux(shared, &socket, &["has-session", "-t", "swarm"]).await;
    let opened = if has_server {
        tmux(
            shared,
            &socket,
            &[&["new-window", "-d", "-t", "swarm:", "-n", &window][..], &viewer[..]].concat(),
        )
        .await
    } else {
        tmux(
            shared,
            &socket,
            &[&["new-session", "-d", "-s", "swarm", "-n", &window][..], &viewer[..]].concat(),
        )
        .await
    };
    if !opened {
        tracing::info!(worker.id = %worker_id, "no tmux window was opened (tmux missing or refusing)");
    }
}

/// Ends the tmux server of this home, with its windows.
pub(crate) async fn end(shared: &Shared) {
    let socket = format!("swarm-{}", shared.home.short_hash());
    tmux(shared, &socket, &["kill-server"]).await;
}

async fn tmux(shared: &Shared, socket: &str, arguments: &[&str]) -> bool {
    let mut command = tokio::process::Command::new("tmux");
    command.arg("-L").arg(socket).args(arguments);
    // The filtered environment: windows must not inherit keys.
    command.env_clear();
    for name in ["PATH", "HOME", "USER", "LANG", "TERM", "TMUX_TMPDIR"] {
        if let Ok(value) = std::env::var(name) {
            command.env(name, value);
        }
    }
    command.env("SWARM_HOME", shared.home.root());
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    ended.is_ok_and(|status| status.success())
}
