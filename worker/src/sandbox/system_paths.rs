//! Which parts of the machine a confined command may read. An allow-list, because Landlock cannot
//! subtract; exceptions inside an allowed tree are carved out by allowing its other children.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// System directories and files of every distribution we know; what is absent is skipped.
const SYSTEM_READABLE: &[&str] = &[
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr",
    "/opt",
    "/etc",
    "/proc",
    "/sys",
    "/nix/store",
    "/nix/var/nix/profiles",
    "/gnu/store",
    "/snap",
    "/home/linuxbrew/.linuxbrew",
    "/var/lib/dpkg",
    "/var/lib/rpm",
    // Where /etc/resolv.conf and /etc/localtime lead on some systems.
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
    "/run/current-system/sw",
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];

/// Tool chains in a home directory.
const HOME_READABLE: &[&str] = &[
    ".asdf",
    ".bun",
    ".cache/ms-playwright",
    ".cache/uv",
    ".cargo",
    ".config/git",
    ".conda",
    ".deno",
    ".dotnet",
    ".gitconfig",
    ".go",
    ".goenv",
    ".gradle/wrapper",
    ".jdks",
    ".local/bin",
    ".local/lib",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pnpm",
    ".local/share/uv",
    ".m2/repository",
    ".miniconda3",
    ".npm",
    ".nvm",
    ".poetry",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman",
    ".volta",
    "go",
    "miniconda3",
];

/// Credentials inside of what is readable.
const SYSTEM_UNREADABLE: &[&str] = &[
    "/etc/NetworkManager/system-connections",
    "/etc/docker",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/ipsec.secrets",
    "/etc/krb5.keytab",
    "/etc/kubernetes",
    "/etc/letsencrypt",
    "/etc/ppp",
    "/etc/rancher",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/wireguard",
    "/etc/wpa_supplicant",
];

/// Credentials in a home directory, whatever makes what is around them readable.
const HOME_UNREADABLE: &[&str] = &[
    ".local/share/uv/credentials",
    ".dotnet/corefx",
    ".aws",
    ".azure",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".claude.json",
    ".claude/.credentials.json",
    ".config/Bitwarden CLI",
    ".config/chromium",
    ".config/containers/auth.json",
    ".config/doctl",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/glab-cli",
    ".config/google-chrome",
    ".config/hub",
    ".config/op",
    ".config/rclone",
    ".config/sops",
    ".docker/config.json",
    ".fly",
    ".gem/credentials",
    ".git-credentials",
    ".gnupg",
    ".gradle/gradle.properties",
    ".kube",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".m2/settings-security.xml",
    ".m2/settings.xml",
    ".mozilla",
    ".netrc",
    ".npmrc",
    ".oci",
    ".password-store",
    ".pgpass",
    ".pki",
    ".pulumi/credentials.json",
    ".pypirc",
    ".ssh",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
    ".yarnrc.yml",
];

/// Devices a command may write to and send ioctls to.
const WRITABLE_DEVICES: &[&str] =
    &["/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"];

/// Settable lists of what is readable and writable beside the worktree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemPaths {
    pub readable: Vec<PathBuf>,
    /// Left out although they are inside a readable tree. Has no effect on the worktree, the temp
    /// directory and the paths a policy names itself.
    pub unreadable: Vec<PathBuf>,
    /// Device files.
    pub devices: Vec<PathBuf>,
    /// Read and write, in the scope `Worktree` only. By default `/dev/shm`, without which no
    /// process pool of Python works; it is shared with the other programs of the same user.
    pub shared_memory: Vec<PathBuf>,
}

impl SystemPaths {
    /// The defaults, with the tool chains of `home`.
    #[must_use]
    pub fn with_home(home: &Path) -> Self {
        let at_home = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(|name| home.join(name)).collect() };
        let mut paths = Self::without_home();
        paths.readable.extend(at_home(HOME_READABLE));
        paths.unreadable.extend(at_home(HOME_UNREADABLE));
        paths
    }

    #[must_use]
    pub fn without_home() -> Self {
        let absolute = |names: &[&str]| names.iter().map(PathBuf::from).collect();
        Self {
            readable: absolute(SYSTEM_READABLE),
            unreadable: absolute(SYSTEM_UNREADABLE),
            devices: absolute(WRITABLE_DEVICES),
            shared_memory: vec![PathBuf::from("/dev/shm")],
        }
    }

    /// The readable trees with the unreadable ones cut out.
    pub(super) fn carved(&self) -> Carved {
        let mut unreadable = BTreeSet::new();
        for path in &self.unreadable {
            // An exception counts for the place it leads to as well as for its name.
            if let Ok(real) = path.canonicalize() {
                unreadable.insert(real);
            }
            unreadable.insert(path.clone());
        }
        let mut carved = Carved::default();
        let mut seen = BTreeSet::new();
        for path in &self.readable {
            // Rules follow symbolic links, so the exceptions have to be met under the real name.
            if let Ok(real) = path.canonicalize()
                && seen.insert(real.clone())
            {
                carve(&real, &unreadable, &mut carved);
            }
        }
        carved
    }
}

/// What a rule set allows: whole trees, and directories that may only be listed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Carved {
    pub(super) trees: Vec<PathBuf>,
    pub(super) listed: Vec<PathBuf>,
}

fn carve(path: &Path, unreadable: &BTreeSet<PathBuf>, carved: &mut Carved) {
    if unreadable.contains(path) {
        return;
    }
    let holds_exception = unreadable.iter().any(|exception| exception.starts_with(path));
    if !holds_exception {
        carved.trees.push(path.to_owned());
        return;
    }
    let Ok(entries) = std::fs::read_dir(path) else {
        return;
    };
    carved.listed.push(path.to_owned());
    for entry in entries.flatten() {
        let child = entry.path();
        match entry.file_type() {
            // A link is followed when it is used; where it leads needs its own rule.
            Ok(kind) if kind.is_symlink() => {
                if let Ok(real) = child.canonicalize()
                    && !unreadable
                        .iter()
                        .any(|exception| exception.starts_with(&real) || real.starts_with(exception))
                    && real.starts_with(path)
                {
                    carved.trees.push(real);
                }
            }
            Ok(_) => carve(&child, unreadable, carved),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(readable: &[PathBuf], unreadable: &[PathBuf]) -> SystemPaths {
        SystemPaths {
            readable: readable.to_vec(),
            unreadable: unreadable.to_vec(),
            devices: Vec::new(),
            shared_memory: Vec::new(),
        }
    }

    #[test]
    fn exceptions_are_cut_out_and_their_siblings_stay() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("ssl/private")).unwrap();
        std::fs::create_dir_all(root.join("ssl/certs")).unwrap();
        std::fs::write(root.join("hosts"), "").unwrap();
        std::fs::write(root.join("shadow"), "").unwrap();
        std::os::unix::fs::symlink(root.join("shadow"), root.join("link")).unwrap();
        let mut carved =
            paths(&[root.clone(), root.join("absent")], &[root.join("shadow"), root.join("ssl/private")])
                .carved();
        carved.trees.sort();
        carved.listed.sort();
        assert_eq!(carved.trees, [root.join("hosts"), root.join("ssl/certs")]);
        assert_eq!(carved.listed, [root.clone(), root.join("ssl")]);
    }

    #[test]
    fn a_tree_without_exceptions_is_one_rule() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let carved = paths(&[root.clone(), root.clone()], &[PathBuf::from("/elsewhere")]).carved();
        assert_eq!(carved.trees, [root]);
    }
}
