//! `swarm dashboard`, `trust`, `config`, `completions`: what is set up once.

use std::io::BufRead;

use serde::Deserialize;
use serde_json::{Value, json};
use swarm_protocol::api::{ConfigValue, LoginCode};

use super::super::{
    args::{CompletionsArgs, DashboardArgs, TrustArgs},
    error::{CliError, Result},
    output::{BOLD, CYAN, DIM, paint},
    repository, server_process,
    shell::Shell,
    task,
    text::{visible, width},
};

/// `swarm dashboard`.
pub(crate) async fn dashboard(shell: &mut Shell, args: &DashboardArgs) -> Result<u8> {
    let found = server_process::find_or_start(shell).await?;
    let code: LoginCode = found.client.post("/login-codes", &json!({})).await?;
    if shell.is_json() {
        shell.json("dashboard", None, None, json!({"url": code.url}))?;
        return Ok(0);
    }
    let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| shell.around.variable(name).is_some());
    if has_desktop && !args.no_open && shell.out.is_terminal && opened(&code.url) {
        shell.out.line(&format!("opened http://{}", found.client.address))?;
    } else {
        shell.out.line(&format!("{}  (works once, for 5 minutes)", code.url))?;
    }
    Ok(0)
}

/// Whether a browser was found.
fn opened(url: &str) -> bool {
    use std::process::{Command, Stdio};
    // `xdg-open` takes its argument in the open; a page in the temp directory that only we can read does not.
    let Ok(mut page) = tempfile::Builder::new().prefix("swarm-").suffix(".html").tempfile() else {
        return false;
    };
    let html = format!(
        "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={url}\"><a href=\"{url}\">swarm</a>"
    );
    if std::io::Write::write_all(&mut page, html.as_bytes()).is_err() {
        return false;
    }
    let Ok((_, path)) = page.keep() else { return false };
    let started = Command::new("xdg-open")
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    // The browser has the page, or will not come; the code in it works once and not for long.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let _gone = std::fs::remove_file(&path);
    started
}

/// `GET /trust`.
#[derive(Debug, Default, Deserialize)]
struct TrustView {
    /// What it runs or widens, one line each.
    #[serde(default)]
    lines: Vec<String>,
    trusted: bool,
    hash: String,
    /// What changed since a person last agreed.
    #[serde(default)]
    difference: Vec<String>,
}

/// `swarm trust`.
pub(crate) async fn trust(shell: &mut Shell, args: &TrustArgs) -> Result<u8> {
    let repository = repository::required(shell)?;
    let found = server_process::find_or_start(shell).await?;
    let repo = repository.checkout.to_string_lossy().into_owned();
    let view: TrustView = found.client.get(&format!("/trust?repo={}", escape(&repo))).await?;
    let shown = shell.path(&repository.checkout);
    let said = |shell: &mut Shell, trusted: bool| -> Result<()> {
        shell.json("trust", None, None, json!({"repo": repo, "trusted": trusted, "hash": view.hash}))
    };
    if view.trusted || view.lines.is_empty() {
        if shell.is_json() {
            said(shell, view.trusted)?;
        } else if view.lines.is_empty() {
            shell.out.line(&format!("{shown} wants nothing that needs trust"))?;
        } else {
            shell.out.line(&format!("{shown} is trusted; nothing has changed since"))?;
        }
        return Ok(0);
    }
    if !shell.is_json() {
        let what = if view.difference.is_empty() {
            "wants to run or widen"
        } else {
            "has changed what it runs or widens"
        };
        shell.out.line(&format!("{} {what}:", paint(BOLD, &shown)))?;
        let lines = if view.difference.is_empty() { &view.lines } else { &view.difference };
        for line in lines {
            shell.out.line(&format!("  {}", visible(line)))?;
        }
    }
    if !args.yes {
        if !shell.can_ask() {
            return Err(CliError::usage("nobody is here to answer").hint("swarm trust --yes"));
        }
        if !confirmed(shell, "let it?")? {
            shell.notice("not trusted; nothing was changed");
            return Ok(1);
        }
    }
    let _done: Value = found.client.post("/trust", &json!({"repo": repo, "hash": view.hash})).await?;
    if shell.is_json() {
        said(shell, true)?;
    } else {
        shell.out.line(&format!("{shown} is trusted until these settings change"))?;
    }
    Ok(0)
}

/// A question with `[y/N]`.
fn confirmed(shell: &mut Shell, question: &str) -> Result<bool> {
    shell.err.text(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    // An end of input is no answer: no.
    let _bytes = std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A query value.
pub(crate) fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// `swarm config`: the shell sees every level itself, so no server is asked.
pub(crate) fn config(shell: &mut Shell) -> Result<u8> {
    let repository = repository::around(shell);
    let settings = task::settings(shell, repository.as_ref(), Vec::new())?;
    let values: Vec<ConfigValue> = settings
        .config
        .explain()
        .iter()
        .map(|explained| ConfigValue {
            key: explained.key.clone(),
            value: explained.value.clone(),
            source: explained.source.to_string(),
            overrides: explained
                .overrides
                .iter()
                .map(|(value, source)| format!("{source} {value}"))
                .collect(),
        })
        .collect();
    if shell.is_json() {
        for value in &values {
            shell.json("config", None, None, json!({"value": value}))?;
        }
        return Ok(0);
    }
    let keys = values.iter().map(|value| width(&value.key)).max().unwrap_or(0);
    // A long list of commands does not push all sources to the right.
    let cells =
        values.iter().map(|value| width(&value.value)).filter(|cells| *cells <= 24).max().unwrap_or(0);
    for ConfigValue { key, value, source, overrides } in values {
        let over =
            if overrides.is_empty() { String::new() } else { format!(" (over {})", overrides.join(", ")) };
        let origin = paint(DIM, &visible(&format!("{source}{over}")));
        shell.out.line(&format!(
            "{}  {:<cells$}  {origin}",
            paint(CYAN, &format!("{key:<keys$}")),
            visible(&value)
        ))?;
    }
    Ok(0)
}

/// `swarm completions`: what a shell sources at its start.
pub(crate) fn completions(shell: &mut Shell, args: &CompletionsArgs) -> Result<u8> {
    let shells = clap_complete::env::Shells::builtins();
    let Some(completer) = shells.completer(&args.shell) else {
        return Err(CliError::usage(format!("no completions for `{}`", args.shell)));
    };
    let mut script = Vec::new();
    completer.write_registration("COMPLETE", "swarm", "swarm", "swarm", &mut script)?;
    shell.out.bytes(&script)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_query() {
        assert_eq!(escape("/home/ada/my repo&x"), "/home/ada/my%20repo%26x");
    }
}
