//! The tests' model provider as a program: `model-server --script FILE --port N`.
//!
//! Prints one line of JSON with its address, then serves until it is told to stop through its control endpoint,
//! by a signal, or because its stdin closes (`--until-eof`).

use std::{io::Write as _, path::PathBuf};

use anyhow::Context as _;
use clap::Parser;
use integration_tests::model_server::ModelServer;
use tokio::io::AsyncReadExt as _;

#[derive(Debug, Parser)]
struct Arguments {
    /// A script file.
    #[arg(long)]
    script: Option<PathBuf>,
    /// 0 takes a free port.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Any other key is answered with 401.
    #[arg(long)]
    api_key: Option<String>,
    /// Serve requests that are no conversations.
    #[arg(long)]
    without_prefix_rule: bool,
    /// End when stdin does, so that no server outlives who started it.
    #[arg(long)]
    until_eof: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut builder = ModelServer::builder().port(arguments.port);
    if let Some(key) = &arguments.api_key {
        builder = builder.api_key(key);
    }
    if arguments.without_prefix_rule {
        builder = builder.without_prefix_rule();
    }
    let server = builder.start();
    if let Some(path) = &arguments.script {
        let script = std::fs::read_to_string(path).context("failed to read the script")?;
        server.script(&script).context("failed to parse the script")?;
    }
    let line = serde_json::json!({"address": server.address(), "url": server.url()});
    writeln!(std::io::stdout(), "{line}")?;
    let eof = async {
        if !arguments.until_eof {
            std::future::pending::<()>().await;
        }
        let mut rest = Vec::new();
        let _any_end = tokio::io::stdin().read_to_end(&mut rest).await;
    };
    tokio::select! {
        () = server.stopped() => {}
        () = eof => {}
        signal = tokio::signal::ctrl_c() => signal?,
    }
    let violations = server.take_violations();
    anyhow::ensure!(violations.is_empty(), "violations:\n{}", violations.join("\n"));
    // A read of stdin cannot be called off; do not wait for it.
    std::process::exit(0);
}
