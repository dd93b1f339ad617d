//! Programs whose arguments are another command: how their own options and operands end.

/// How a wrapper's own arguments end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wrapper {
    /// Options that take the following word.
    pub(super) valued: &'static [&'static str],
    /// Operands of its own before the command (`timeout`'s duration).
    pub(super) n_operands: usize,
    /// `NAME=value` operands before the command.
    pub(super) assignments: bool,
    /// It changes nothing about what runs, so an allow rule may match behind it.
    pub(super) transparent: bool,
    /// Options whose value is a script for a shell.
    pub(super) script: &'static [&'static str],
    /// Its operands are one script, joined by blanks.
    pub(super) joins: bool,
}

const PLAIN: Wrapper =
    Wrapper { valued: &[], n_operands: 0, assignments: false, transparent: false, script: &[], joins: false };
const STRIPPED: Wrapper = Wrapper { transparent: true, ..PLAIN };

/// A wrapper by its own name.
pub(super) fn by_program(program: &str) -> Option<Wrapper> {
    Some(match program {
        "timeout" | "gtimeout" => {
            Wrapper { valued: &["-k", "--kill-after", "-s", "--signal"], n_operands: 1, ..STRIPPED }
        }
        "nice" => Wrapper { valued: &["-n", "--adjustment"], ..STRIPPED },
        "nohup" | "builtin" | "noglob" | "command" => STRIPPED,
        "stdbuf" => Wrapper { valued: &["-i", "-o", "-e", "--input", "--output", "--error"], ..STRIPPED },
        "time" | "gtime" => Wrapper { valued: &["-f", "--format", "-o", "--output"], ..STRIPPED },
        "env" | "genv" => Wrapper {
            valued: &["-u", "--unset", "-C", "--chdir", "-a", "--argv0"],
            assignments: true,
            ..PLAIN
        },
        "exec" => Wrapper { valued: &["-a"], ..PLAIN },
        "sudo" | "doas" => Wrapper {
            valued: &[
                "-u",
                "-g",
                "-h",
                "-p",
                "-C",
                "-T",
                "-D",
                "-R",
                "-r",
                "-t",
                "-U",
                "--user",
                "--group",
                "--host",
                "--prompt",
                "--chdir",
                "--chroot",
                "--role",
                "--type",
                "--close-from",
                "--command-timeout",
            ],
            assignments: true,
            ..PLAIN
        },
        "su" | "runuser" => Wrapper {
            valued: &["-s", "--shell", "-g", "--group", "-G", "-w", "-u", "--user"],
            script: &["-c", "--command", "--session-command"],
            ..PLAIN
        },
        "script" => Wrapper { script: &["-c", "--command"], ..PLAIN },
        "flock" => Wrapper {
            valued: &["-w", "--wait", "--timeout", "-E", "--conflict-exit-code"],
            n_operands: 1,
            script: &["-c", "--command"],
            ..PLAIN
        },
        "chrt" | "taskset" | "faketime" => Wrapper { n_operands: 1, ..PLAIN },
        "chroot" => Wrapper { n_operands: 1, valued: &["--userspec", "--groups"], ..PLAIN },
        "ionice" => Wrapper { valued: &["-c", "-n", "-p", "--class", "--classdata", "--pid"], ..PLAIN },
        "busybox" | "toybox" | "setsid" | "unbuffer" | "fakeroot" | "fakechroot" | "proot" | "firejail"
        | "rlwrap" | "catchsegv" | "dbus-run-session" | "caffeinate" | "linux32" | "linux64" | "entr"
        | "doppler" => PLAIN,
        "ssh-agent" => Wrapper { valued: &["-a", "-t", "-E", "-P", "-O"], ..PLAIN },
        "xvfb-run" => Wrapper {
            valued: &[
                "-e",
                "--error-file",
                "-f",
                "--auth-file",
                "-n",
                "--server-num",
                "-p",
                "-s",
                "--server-args",
                "-w",
            ],
            ..PLAIN
        },
        "setarch" => Wrapper { n_operands: 1, ..PLAIN },
        "setpriv" => Wrapper {
            valued: &["--reuid", "--regid", "--groups", "--inh-caps", "--ambient-caps", "--bounding-set"],
            ..PLAIN
        },
        "gosu" | "su-exec" => Wrapper { n_operands: 1, ..PLAIN },
        "prlimit" => Wrapper { valued: &["-p", "--pid", "-o", "--output"], ..PLAIN },
        "numactl" => Wrapper { valued: &["-m", "-N", "-C", "-p", "-i"], ..PLAIN },
        "unshare" => {
            Wrapper { valued: &["-S", "-G", "-R", "-w", "--root", "--wd", "--setuid", "--setgid"], ..PLAIN }
        }
        "nsenter" => Wrapper { valued: &["-t", "--target", "-S", "-G"], ..PLAIN },
        "strace" | "ltrace" => Wrapper {
            valued: &["-o", "-e", "-p", "-s", "-u", "-E", "-a", "-O", "-S", "-P", "-I", "-b", "-X"],
            ..PLAIN
        },
        "valgrind" => PLAIN,
        "watch" => Wrapper { valued: &["-n", "--interval"], joins: true, ..PLAIN },
        "parallel" => Wrapper {
            valued: &[
                "-j",
                "--jobs",
                "-N",
                "-n",
                "-L",
                "-I",
                "-a",
                "--arg-file",
                "-C",
                "--colsep",
                "--delay",
                "--timeout",
                "--tmpdir",
                "--workdir",
                "--wd",
                "-S",
                "--sshlogin",
                "--joblog",
                "--results",
                "--retries",
                "--load",
                "--memfree",
                "--nice",
                "--env",
                "--tagstring",
                "--max-args",
                "--max-procs",
                "-P",
                "-s",
                "-d",
                "-E",
            ],
            joins: true,
            ..PLAIN
        },
        "xargs" | "gxargs" => Wrapper {
            valued: &[
                "-n",
                "-P",
                "-I",
                "-L",
                "-d",
                "-a",
                "-s",
                "-E",
                "--max-args",
                "--max-procs",
                "--replace",
                "--max-lines",
                "--delimiter",
                "--arg-file",
                "--max-chars",
                "--process-slot-var",
            ],
            ..PLAIN
        },
        "npx" | "bunx" | "pnpx" => {
            Wrapper { valued: &["-p", "--package", "-w", "--workspace"], script: &["-c", "--call"], ..PLAIN }
        }
        _ => return None,
    })
}

/// A wrapper by its name and the word behind its options: `uv run x`, `git bisect run x`.
pub(super) fn by_subcommand(program: &str, words: &[Option<&str>]) -> Option<(usize, Wrapper)> {
    let word = |at: usize| words.get(at).copied().flatten();
    let found = |n_words: usize, wrapper: Wrapper| Some((n_words, wrapper));
    match (program, word(0)?) {
        ("uv" | "poetry" | "pipenv" | "pdm" | "hatch" | "rye" | "pixi", "run") => found(
            1,
            Wrapper { valued: &["--with", "-p", "--python", "--extra", "--group", "--env-file"], ..PLAIN },
        ),
        ("bundle" | "pnpm" | "yarn" | "npm" | "mise" | "asdf" | "nix", "exec" | "x") => {
            found(1, Wrapper { valued: &["-p", "--package", "-w"], script: &["-c", "--call"], ..PLAIN })
        }
        ("direnv", "exec") | ("rustup", "run") => found(1, Wrapper { n_operands: 1, ..PLAIN }),
        ("conda" | "mamba" | "micromamba", "run") => {
            found(1, Wrapper { valued: &["-n", "--name", "-p", "--prefix", "--cwd"], ..PLAIN })
        }
        ("perf", "stat" | "record" | "trace") => {
            found(1, Wrapper { valued: &["-e", "-o", "-p", "-F"], ..PLAIN })
        }
        ("git", "bisect") if word(1) == Some("run") => found(2, PLAIN),
        ("git", "submodule") if words.iter().flatten().any(|word| *word == "foreach") => {
            let at = words.iter().position(|word| *word == Some("foreach"))?;
            found(at + 1, Wrapper { joins: true, ..PLAIN })
        }
        ("git", "rebase") => found(1, Wrapper { script: &["-x", "--exec"], ..PLAIN }),
        _ => None,
    }
}

impl Wrapper {
    /// How many words an option takes, itself included.
    pub(super) fn option_len(&self, text: &str) -> usize {
        if is_option_of(self.valued, text) || is_option_of(self.script, text) { 2 } else { 1 }
    }

    /// The script in the word, for `-cSCRIPT` and `--command=SCRIPT`; `Some(None)`: it is the next word.
    pub(super) fn script_of<'a>(&self, text: &'a str) -> Option<Option<&'a str>> {
        if is_option_of(self.script, text) {
            return Some(None);
        }
        if let Some((name, value)) = text.split_once('=')
            && is_option_of(self.script, name)
        {
            return Some(Some(value));
        }
        let cluster = text.strip_prefix('-').filter(|rest| !rest.starts_with('-'))?;
        let letter = |(at, c): (usize, char)| {
            self.script.contains(&format!("-{c}").as_str()).then(|| at + c.len_utf8())
        };
        let end = cluster.char_indices().find_map(letter)?;
        Some(Some(&cluster[end..]))
    }
}

/// Whether this word is one of the options, to which the next word belongs: also abbreviated, or last of a cluster.
fn is_option_of(options: &[&str], text: &str) -> bool {
    if text.starts_with("--") {
        let abbreviates =
            |option: &&&str| option.starts_with("--") && text.len() > 3 && option.starts_with(text);
        return !text.contains('=') && options.iter().any(|option| *option == text || abbreviates(&option));
    }
    let Some(cluster) = text.strip_prefix('-') else { return false };
    let takes_value = |c: char| options.contains(&format!("-{c}").as_str());
    match cluster.char_indices().find(|(_, c)| takes_value(*c)) {
        Some((at, c)) => at + c.len_utf8() == cluster.len(),
        None => false,
    }
}
