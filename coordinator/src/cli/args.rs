//! The command line: commands, flags, help. What comes later is here by name only, so that it is refused
//! and never misread.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use swarm_protocol::permission::PermissionMode;

use super::{complete, output::Colour};

const EXAMPLES: &str = "\
Examples:
  swarm run \"refactor auth module\"          one request becomes reviewed branches
  swarm run --model demo \"try it out\"       the same with a scripted model: no key, no network
  swarm ps                                  what runs in this repository
  swarm diff a1b                            what a worker did
  swarm merge a1b                           take it

Work:      run, attach, send, stop, resume, approve, deny
Look:      ps, show, logs, diff, explain, cost, dashboard
Review:    merge, discard, restore, gc
Set up:    serve, trust, config, permissions, doctor, completions

For programs: every command that shows something takes --json and writes one JSON object a line.
Exit codes: 0 done; 1 degraded, failed, or an error; 2 usage; 3 no model, or key or model refused;
130 interrupted.";

/// Turns one request about a git repository into parallel work by many agents.
#[derive(Debug, Parser)]
#[command(name = "swarm", version, before_help = EXAMPLES, disable_help_subcommand = true, max_term_width = 100,
    help_template = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}\n\n{all-args}\n")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GlobalArgs {
    /// The repository, instead of the one around the working directory
    #[arg(long, global = true, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) repo: Option<PathBuf>,
    /// JSON lines on stdout, and nothing else; --json=1 pins the version
    #[arg(long, global = true, value_name = "VERSION", num_args = 0..=1, require_equals = true,
        default_missing_value = "1", value_parser = json_version)]
    pub(crate) json: Option<u32>,
    /// When to colour: NO_COLOR and CLICOLOR are heard with `auto`
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Colour,
    /// How progress is shown
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "HOW",
        env = "SWARM_PROGRESS",
        hide_env_values = true
    )]
    pub(crate) progress: Progress,
    /// Result and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Reasons (base, tier, cache); -vv: tracing on stderr
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Never start a pager
    #[arg(long, global = true)]
    pub(crate) no_pager: bool,
    /// Never ask; what would need an answer fails and names the flag that gives it
    #[arg(long, global = true)]
    pub(crate) no_input: bool,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Progress {
    /// Rows on a terminal, else lines.
    #[default]
    Auto,
    /// Live rows.
    Rows,
    /// One fact a line.
    Plain,
    /// Nothing.
    None,
}

fn json_version(text: &str) -> Result<u32, String> {
    match text {
        "" | "1" => Ok(1),
        other => Err(format!("this swarm writes version 1, not `{other}`")),
    }
}

fn permission_mode(text: &str) -> Result<PermissionMode, String> {
    text.parse().map_err(|error: swarm_protocol::permission::UnknownPermissionMode| error.to_string())
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Do what the prompt says, in parallel, and hand back branches
    Run(Box<RunArgs>),
    /// Follow a session, or watch a worker
    Attach(IdArgs),
    /// Say something to a worker or a coordinator
    Send(SendArgs),
    /// Stop a worker or a session; its work is committed to its branch
    Stop(StopArgs),
    /// Go on with a session, and follow it
    Resume(ResumeArgs),
    /// Allow what a worker asks for
    Approve(ApproveArgs),
    /// Refuse what a worker asks for
    Deny(DenyArgs),
    /// What runs in this repository
    Ps(PsArgs),
    /// Everything about a worker or a session
    Show(IdArgs),
    /// What happened, line by line
    Logs(LogsArgs),
    /// What a worker changed, as a patch
    Diff(DiffArgs),
    /// Why a worker ended as it did, and the way of its news
    Explain(IdArgs),
    /// Tokens and dollars
    Cost(CostArgs),
    /// Open the dashboard in the browser
    Dashboard(DashboardArgs),
    /// Take a worker's branch into the target
    Merge(MergeArgs),
    /// Put a worker's branch away; it can come back
    Discard(DiscardArgs),
    /// Bring a discarded branch back, or a snapshot
    Restore(RestoreArgs),
    /// Remove what is proven to be of no more use
    Gc(GcArgs),
    /// Run the server, or end it
    Serve(ServeArgs),
    /// Let this repository's settings run what they name
    Trust(TrustArgs),
    /// The settings in force, each with its source
    Config,
    /// Whether this machine has what swarm needs
    Doctor(DoctorArgs),
    /// What rules, modes and sandbox say to a call; who was allowed what, and by whom
    Permissions(PermissionsArgs),
    /// Print the line that registers completions with a shell
    Completions(CompletionsArgs),
}

/// `run`.
#[derive(Args, Debug)]
#[command(before_help = "Examples:
  swarm run \"refactor auth module\"
  swarm run --model demo --detach \"try it out\"
  swarm run --json --check \"cargo test\" \"fix the flaky test\" | tail -1")]
pub(crate) struct RunArgs {
    /// What to do
    #[arg(value_name = "PROMPT", required = true, num_args = 1.., allow_hyphen_values = false)]
    pub(crate) prompt: Vec<String>,
    /// provider/name, or demo
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// The commit workers start from, instead of HEAD
    #[arg(long, value_name = "COMMIT")]
    pub(crate) base: Option<String>,
    /// Let workers start from your uncommitted changes too; your checkout stays as it is
    #[arg(long, conflicts_with = "base")]
    pub(crate) carry: bool,
    /// Workers at once
    #[arg(long, value_name = "N")]
    pub(crate) max_workers: Option<String>,
    /// Turns of a worker's run
    #[arg(long, value_name = "N")]
    pub(crate) max_turns: Option<String>,
    /// What the session may spend, workers included
    #[arg(long, value_name = "DOLLARS")]
    pub(crate) budget_usd: Option<String>,
    /// The same in tokens, input and output
    #[arg(long, value_name = "N")]
    pub(crate) budget_tokens: Option<String>,
    /// default, acceptEdits, plan, auto or bypassPermissions
    #[arg(long, value_name = "MODE", value_parser = permission_mode)]
    pub(crate) permission_mode: Option<PermissionMode>,
    /// Nobody will answer: what would ask is denied at once
    #[arg(long)]
    pub(crate) unattended: bool,
    /// Give each worker a tmux window
    #[arg(long)]
    pub(crate) tmux: bool,
    /// Words to add to the agents' system prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system_prompt: Option<String>,
    /// The check command of the project, which the agents are told to run
    #[arg(long, value_name = "CMD")]
    pub(crate) check: Option<String>,
    /// A label for this task; may be repeated
    #[arg(long = "label", value_name = "TEXT")]
    pub(crate) labels: Vec<String>,
    /// Submit, and do not follow
    #[arg(long)]
    pub(crate) detach: bool,
    /// One agent that begins in your checkout, where it may only look, and no coordinator
    #[arg(long)]
    pub(crate) solo: bool,
    #[command(flatten)]
    pub(crate) later: RunLater,
}

/// Flags of `run` that are not offered yet.
#[derive(Args, Debug, Default)]
pub(crate) struct RunLater {
    #[arg(long, hide = true)]
    no_hooks: bool,
}

impl RunLater {
    /// The first that was given.
    pub(crate) fn named(&self) -> Option<&'static str> {
        let Self { no_hooks } = self;
        no_hooks.then_some("--no-hooks")
    }
}

/// Commands that are not offered yet: refused by name.
pub(crate) const LATER_COMMANDS: [&str; 10] =
    ["ask", "compact", "clear", "pr", "search", "top", "replay", "backup", "node", "mcp"];

/// The whole command line, names of later commands included.
pub(crate) fn command() -> clap::Command {
    let later = |name: &'static str| {
        let rest = clap::Arg::new("rest").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
        clap::Command::new(name).hide(true).disable_help_flag(true).arg(rest)
    };
    Cli::command().subcommands(LATER_COMMANDS.map(later))
}

/// An id alone.
#[derive(Args, Debug)]
pub(crate) struct IdArgs {
    /// A worker or session: id, unique prefix, worker name, or - for the newest session here
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::ids))]
    pub(crate) id: String,
}

/// `send`.
#[derive(Args, Debug)]
pub(crate) struct SendArgs {
    /// To whom
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::ids))]
    pub(crate) id: String,
    /// The words
    #[arg(value_name = "TEXT", required = true, num_args = 1..)]
    pub(crate) text: Vec<String>,
}

/// `stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// What to stop
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::ids))]
    pub(crate) id: String,
    /// Why, for its record
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

/// `resume`.
#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    /// The session
    #[arg(value_name = "SESSION", add = ArgValueCompleter::new(complete::sessions))]
    pub(crate) id: String,
    /// Go on, and do not follow
    #[arg(long)]
    pub(crate) detach: bool,
}

/// Which requests are answered.
#[derive(Args, Debug)]
pub(crate) struct AnswerArgs {
    /// The requests, or the workers that ask
    #[arg(value_name = "REQ", add = ArgValueCompleter::new(complete::requests), required_unless_present = "all")]
    pub(crate) requests: Vec<String>,
    /// All that this session asks now
    #[arg(long, value_name = "SESSION", add = ArgValueCompleter::new(complete::sessions), conflicts_with = "requests")]
    pub(crate) all: Option<String>,
}

/// `approve`.
#[derive(Args, Debug)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    pub(crate) which: AnswerArgs,
    /// For this session: everything the proposed rule matches
    #[arg(long, conflicts_with = "always")]
    pub(crate) session: bool,
    /// From now on: the rule is written to the settings
    #[arg(long)]
    pub(crate) always: bool,
    /// Words to the model, such as the answer to its question
    #[arg(long, short = 'm', value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

/// `deny`.
#[derive(Args, Debug)]
pub(crate) struct DenyArgs {
    #[command(flatten)]
    pub(crate) which: AnswerArgs,
    /// Words to the model
    #[arg(long, short = 'm', value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Stop the worker too
    #[arg(long)]
    pub(crate) stop: bool,
}

/// `ps`.
#[derive(Args, Debug)]
pub(crate) struct PsArgs {
    /// What ended, too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Of all repositories
    #[arg(long)]
    pub(crate) all_repos: bool,
}

/// `logs`.
#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// A worker or session
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::ids))]
    pub(crate) id: String,
    /// Go on as things happen
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// What came after this cursor (`seq` of --json)
    #[arg(long, value_name = "SEQ")]
    pub(crate) since: Option<u64>,
}

/// `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The worker
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::workers))]
    pub(crate) id: String,
    /// Files and lines only
    #[arg(long)]
    pub(crate) stat: bool,
}

/// `cost`.
#[derive(Args, Debug)]
pub(crate) struct CostArgs {
    /// What a row is
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) by: CostBy,
}

/// What a row of `cost` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CostBy {
    /// A session.
    #[default]
    Session,
    /// A worker.
    Worker,
    /// A model.
    Model,
    /// A day.
    Day,
}

impl CostBy {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Worker => "worker",
            Self::Model => "model",
            Self::Day => "day",
        }
    }
}

/// `dashboard`.
#[derive(Args, Debug)]
pub(crate) struct DashboardArgs {
    /// Print the link only
    #[arg(long)]
    pub(crate) no_open: bool,
}

/// `merge`.
#[derive(Args, Debug)]
pub(crate) struct MergeArgs {
    /// The worker
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::workers), required_unless_present = "all")]
    pub(crate) id: Option<String>,
    /// The branch to move, instead of the one that was checked out at submit
    #[arg(long, value_name = "BRANCH")]
    pub(crate) into: Option<String>,
    /// How
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub(crate) strategy: Strategy,
    /// Run the project's check on the merged tree first
    #[arg(long)]
    pub(crate) check: bool,
    /// Only try
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[arg(long, hide = true)]
    pub(crate) all: bool,
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    pub(crate) resolve: Option<String>,
    #[arg(long, hide = true)]
    pub(crate) queue: bool,
}

/// How a branch is merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Strategy {
    /// Fast-forward when possible, else a merge commit.
    #[default]
    Merge,
    /// One commit.
    Squash,
    /// Replayed on the target.
    Rebase,
    /// Always a merge commit.
    NoFf,
}

/// `restore`.
#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// The worker
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::workers))]
    pub(crate) id: String,
    /// The snapshot; without it a discarded branch comes back
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: Option<u32>,
    /// List the snapshots
    #[arg(long, conflicts_with = "snapshot")]
    pub(crate) list: bool,
}

/// `discard`.
#[derive(Args, Debug)]
pub(crate) struct DiscardArgs {
    /// A worker: id, unique prefix or name
    #[arg(value_name = "ID", add = ArgValueCompleter::new(complete::ids))]
    pub(crate) id: String,
    /// Also while git has something unfinished there, such as a rebase
    #[arg(long)]
    pub(crate) force: bool,
}

/// `gc`.
#[derive(Args, Debug)]
pub(crate) struct GcArgs {
    /// Only list
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Unmerged work too; it goes to the recycle bin
    #[arg(long)]
    pub(crate) force: bool,
}

/// `serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The port on loopback; a free one when absent
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// End the server of this home; refused while workers run
    #[arg(long, conflicts_with = "port")]
    pub(crate) stop: bool,
    /// With --stop: stop workers first, their work is committed
    #[arg(long, requires = "stop", conflicts_with = "leave")]
    pub(crate) workers: bool,
    /// With --stop: end the server alone, workers run on
    #[arg(long, requires = "stop")]
    pub(crate) leave: bool,
    /// Started by another command: a POSIX session of its own.
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
}

/// `trust`.
#[derive(Args, Debug)]
pub(crate) struct TrustArgs {
    /// Say yes without being asked
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[arg(long, hide = true)]
    pub(crate) chaos: bool,
}

/// `permissions`.
#[derive(Args, Debug)]
pub(crate) struct PermissionsArgs {
    #[command(subcommand)]
    pub(crate) command: PermissionsCommand,
}

/// What about permissions.
#[derive(Debug, Subcommand)]
pub(crate) enum PermissionsCommand {
    /// Say which rule of which file, or which default, decides about a call
    Explain(ExplainCallArgs),
    /// Each request of a session or worker: what it asked, who decided, when
    Log(IdArgs),
}

/// `permissions explain`.
#[derive(Args, Debug)]
#[command(before_help = "Examples:
  swarm permissions explain \"Bash(git push)\"
  swarm permissions explain --permission-mode plan \"Edit(src/lib.rs)\"
  swarm permissions explain --json \"WebFetch(https://example.com)\"")]
pub(crate) struct ExplainCallArgs {
    /// The call, as a rule would name it
    #[arg(value_name = "CALL")]
    pub(crate) call: String,
    /// As if a task had this mode: default, acceptEdits, plan, auto or bypassPermissions
    #[arg(long, value_name = "MODE", value_parser = permission_mode)]
    pub(crate) permission_mode: Option<PermissionMode>,
    /// As if nobody could be asked
    #[arg(long)]
    pub(crate) unattended: bool,
    /// As if no sandbox enforced
    #[arg(long)]
    pub(crate) no_sandbox: bool,
}

/// `completions`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// bash, zsh, fish, elvish or powershell
    #[arg(value_parser = ["bash", "zsh", "fish", "elvish", "powershell"])]
    pub(crate) shell: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn json_takes_an_optional_version() {
        let json = |arguments: &[&str]| Cli::try_parse_from(arguments).map(|cli| cli.global.json);
        assert_eq!(json(&["swarm", "ps", "--json"]).unwrap(), Some(1));
        assert_eq!(json(&["swarm", "ps", "--json=1"]).unwrap(), Some(1));
        assert_eq!(json(&["swarm", "run", "--json", "do it"]).unwrap(), Some(1));
        assert_eq!(json(&["swarm", "ps"]).unwrap(), None);
        assert_eq!(json(&["swarm", "ps", "--json=2"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn what_comes_later_is_named() {
        let cli = Cli::try_parse_from(["swarm", "run", "--no-hooks", "x"]).unwrap();
        let Command::Run(run) = cli.command else { panic!("run") };
        assert_eq!(run.later.named(), Some("--no-hooks"));
        for name in LATER_COMMANDS {
            let matches = command().try_get_matches_from(["swarm", name, "--deep", "x"]).unwrap();
            assert_eq!(matches.subcommand_name(), Some(name));
        }
    }
}
