//! What the three workers do to the sample repository (`deploy/sample`). The texts to replace are its files'
//! own, word for word; a test carries the edits out and runs the sample's tests.

use serde_json::json;

use super::script::Call;

/// How a worker's prompt names its part.
pub(super) const STEP_MARK: &str = "Demo step: ";

/// How a follow-up names itself.
pub(super) const FOLLOW_UP_MARK: &str = "Demo follow-up: ";

/// A part of the refactoring, as the coordinator hands it out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// What stands after the mark.
    pub(super) name: &'static str,
    /// Three to five words.
    pub(super) description: &'static str,
    /// The prompt, without the mark.
    pub(super) prompt: &'static str,
}

/// The three parts; they touch different files.
pub(super) const PARTS: [Part; 3] = [
    Part {
        name: "tokens",
        description: "Extract token checks",
        prompt: "In this Python project, `verify` and `refresh` in shop/auth/tokens.py hold the same checks \
                 twice. Move them into one helper that both use, compare signatures in constant time, and do not \
                 change what callers see. Do not touch other modules. The tests (`python3 -m unittest -q`) must \
                 pass.",
    },
    Part {
        name: "passwords",
        description: "Harden password hashing",
        prompt: "In this Python project, shop/auth/passwords.py stores unsalted MD5 hashes. Use PBKDF2 with a \
                 random salt from the standard library, compare in constant time, keep the two functions' \
                 signatures, and add a test to tests/test_passwords.py that equal passwords get different \
                 hashes. Do not touch other modules. The tests (`python3 -m unittest -q`) must pass.",
    },
    Part {
        name: "docs",
        description: "Document the auth API",
        prompt: "In this Python project, write docs/auth.md, one page on how to use shop/auth, link it from \
                 README.md, and give shop/auth/session.py docstrings. Do not change what the code does, and do \
                 not touch other modules. The tests (`python3 -m unittest -q`) must pass.",
    },
];

/// The follow-up to the worker that did the tokens.
pub(super) const FOLLOW_UP_NAME: &str = "empty token";

/// What it is asked.
pub(super) const FOLLOW_UP: &str =
    "Good. Also add a test to tests/test_tokens.py that the empty token is refused, and run the tests again.";

/// A worker's turn: words, and the calls that go with them.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) say: &'static str,
    pub(super) calls: Vec<Call>,
}

/// A worker's plan.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The file without which the plan makes no sense.
    pub(super) needs: &'static str,
    pub(super) steps: Vec<Step>,
    /// The last words, before what is said of the tests.
    pub(super) done: &'static str,
}

fn step(say: &'static str, calls: Vec<Call>) -> Step {
    Step { say, calls }
}

fn glob(pattern: &str) -> Call {
    Call { tool: "Glob", input: json!({"pattern": pattern}) }
}

fn read(file_path: &str) -> Call {
    Call { tool: "Read", input: json!({"file_path": file_path}) }
}

fn edit(file_path: &str, old_string: &str, new_string: &str) -> Call {
    let input = json!({"file_path": file_path, "old_string": old_string, "new_string": new_string});
    Call { tool: "Edit", input }
}

fn write(file_path: &str, content: &str) -> Call {
    Call { tool: "Write", input: json!({"file_path": file_path, "content": content}) }
}

fn run_tests() -> Call {
    let input = json!({"command": "python3 -m unittest -q", "description": "Run the project's tests"});
    Call { tool: "Bash", input }
}

/// The to-do list with the first `n_done` items done and the next one in progress.
fn todos(items: &[(&str, &str)], n_done: usize) -> Call {
    let todos: Vec<_> = items
        .iter()
        .enumerate()
        .map(|(index, (content, active_form))| {
            let status = match index {
                _ if index < n_done => "completed",
                _ if index == n_done => "in_progress",
                _ => "pending",
            };
            json!({"content": content, "activeForm": active_form, "status": status})
        })
        .collect();
    Call { tool: "TodoWrite", input: json!({"todos": todos}) }
}

/// The plan of a part or of the follow-up.
pub(super) fn plan(name: &str) -> Option<Plan> {
    match name {
        "tokens" => Some(tokens()),
        "passwords" => Some(passwords()),
        "docs" => Some(docs()),
        FOLLOW_UP_NAME => Some(follow_up()),
        _ => None,
    }
}

fn tokens() -> Plan {
    const FILE: &str = "shop/auth/tokens.py";
    const TODOS: &[(&str, &str)] = &[
        ("Read the module and its tests", "Reading the module and its tests"),
        ("Move the checks into one helper", "Moving the checks into one helper"),
        ("Run the tests", "Running the tests"),
    ];
    Plan {
        needs: FILE,
        steps: vec![
            step("I look at the auth module first.", vec![todos(TODOS, 0), glob("shop/auth/*.py")]),
            step("", vec![read(FILE), read("tests/test_tokens.py")]),
            step(
                "Both functions hold the same checks. I move them into one helper and compare signatures in \
                 constant time.",
                vec![todos(TODOS, 1), edit(FILE, VERIFY_OLD, VERIFY_NEW)],
            ),
            step("Now `refresh` uses it too.", vec![edit(FILE, REFRESH_OLD, REFRESH_NEW)]),
            step("", vec![todos(TODOS, 2), run_tests()]),
            step("", vec![todos(TODOS, 3)]),
        ],
        done: "The token checks are in one helper, `_checked`, which `verify` and `refresh` share; signatures are \
               compared in constant time.",
    }
}

const VERIFY_OLD: &str = r#"def verify(token, now=None):
    now = time.time() if now is None else now
    parts = token.split(".")
    if len(parts) != 3:
        return None
    user, expiry, signature = parts
    if signature != sign(f"{user}.{expiry}"):
        return None
    if int(expiry) < now:
        return None
    return user
"#;

const VERIFY_NEW: &str = r#"def _checked(token, now):
    """The user of a token that is well formed, signed by us and not expired; else None."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    user, expiry, signature = parts
    if not hmac.compare_digest(signature, sign(f"{user}.{expiry}")):
        return None
    if int(expiry) < now:
        return None
    return user


def verify(token, now=None):
    """The user a valid token names, else None."""
    now = time.time() if now is None else now
    return _checked(token, now)
"#;

const REFRESH_OLD: &str = r#"def refresh(token, now=None):
    now = time.time() if now is None else now
    parts = token.split(".")
    if len(parts) != 3:
        return None
    user, expiry, signature = parts
    if signature != sign(f"{user}.{expiry}"):
        return None
    if int(expiry) < now:
        return None
    return issue(user, now)
"#;

const REFRESH_NEW: &str = r#"def refresh(token, now=None):
    """A new token for a valid one, else None."""
    now = time.time() if now is None else now
    user = _checked(token, now)
    return None if user is None else issue(user, now)
"#;

fn follow_up() -> Plan {
    const FILE: &str = "tests/test_tokens.py";
    Plan {
        needs: FILE,
        steps: vec![
            step("I add the test for the empty token.", vec![glob("tests/*.py")]),
            step("", vec![read(FILE)]),
            step("", vec![edit(FILE, TOKEN_TEST_OLD, TOKEN_TEST_NEW)]),
            step("", vec![run_tests()]),
        ],
        done: "tests/test_tokens.py now has a test that the empty token is refused.",
    }
}

const TOKEN_TEST_OLD: &str = r#"    def test_a_changed_token_is_refused(self):
"#;

const TOKEN_TEST_NEW: &str = r#"    def test_the_empty_token_is_refused(self):
        self.assertIsNone(tokens.verify("", now=1000))
        self.assertIsNone(tokens.refresh("", now=1000))

    def test_a_changed_token_is_refused(self):
"#;

fn passwords() -> Plan {
    const FILE: &str = "shop/auth/passwords.py";
    const TESTS: &str = "tests/test_passwords.py";
    Plan {
        needs: FILE,
        steps: vec![
            step("I read how passwords are stored.", vec![glob("shop/auth/*.py")]),
            step("", vec![read(FILE), read(TESTS)]),
            step("MD5 without salt has to go.", vec![edit(FILE, PASSWORDS_OLD, PASSWORDS_NEW)]),
            step("Now a test for the salt.", vec![edit(TESTS, PASSWORD_TEST_OLD, PASSWORD_TEST_NEW)]),
            step("", vec![run_tests()]),
        ],
        done: "Passwords are stored as PBKDF2 hashes with a random salt and compared in constant time; a new test \
               checks that equal passwords get different hashes.",
    }
}

const PASSWORDS_OLD: &str = r#"import hashlib


def hash_password(password):
    return hashlib.md5(password.encode()).hexdigest()


def check_password(password, stored):
    return hash_password(password) == stored
"#;

const PASSWORDS_NEW: &str = r#"import hashlib
import hmac
import secrets

ROUNDS = 100_000


def _derive(password, salt):
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ROUNDS)


def hash_password(password):
    """What to store of a password: `salt$hash`, both in hex."""
    salt = secrets.token_bytes(16)
    return f"{salt.hex()}${_derive(password, salt).hex()}"


def check_password(password, stored):
    """Whether a password is the one that was stored."""
    salt, _, derived = stored.partition("$")
    return hmac.compare_digest(_derive(password, bytes.fromhex(salt)).hex(), derived)
"#;

const PASSWORD_TEST_OLD: &str = r#"    def test_a_wrong_password_does_not(self):
"#;

const PASSWORD_TEST_NEW: &str = r#"    def test_equal_passwords_get_different_hashes(self):
        self.assertNotEqual(passwords.hash_password("same"), passwords.hash_password("same"))

    def test_a_wrong_password_does_not(self):
"#;

fn docs() -> Plan {
    const FILE: &str = "shop/auth/session.py";
    Plan {
        needs: FILE,
        steps: vec![
            step("I read the module that callers use.", vec![glob("shop/auth/*.py")]),
            step("", vec![read(FILE), read("README.md")]),
            step("", vec![write("docs/auth.md", AUTH_PAGE)]),
            step("", vec![edit(FILE, SESSION_OLD, SESSION_NEW)]),
            step("", vec![edit(FILE, LOG_IN_OLD, LOG_IN_NEW)]),
            step("", vec![edit("README.md", README_OLD, README_NEW)]),
            step("", vec![run_tests()]),
        ],
        done: "docs/auth.md says how to use shop/auth, README.md links it, and shop/auth/session.py has docstrings.",
    }
}

const AUTH_PAGE: &str = r#"# shop.auth

`shop.auth.session.Accounts` is what callers use:

```python
from shop.auth.session import Accounts

accounts = Accounts()
accounts.register("ann", "correct horse")

token = accounts.log_in("ann", "correct horse")
accounts.user_of(token)  # "ann"
```

| call | answer |
| --- | --- |
| `register(user, password)` | nothing; `ValueError` when the name is taken |
| `log_in(user, password)` | a token, or `None` |
| `user_of(token)` | the user, or `None` when the token is malformed, forged or expired |

A token is valid for `shop.auth.tokens.LIFETIME` seconds; `shop.auth.tokens.refresh` makes a new one of it.
"#;

const SESSION_OLD: &str = r#"from shop.auth import passwords, tokens


class Accounts:
    def __init__(self):
"#;

const SESSION_NEW: &str = r#""""Accounts: registering, logging in, and whose token this is. See docs/auth.md."""

from shop.auth import passwords, tokens


class Accounts:
    """Users with their stored passwords, in memory."""

    def __init__(self):
"#;

const LOG_IN_OLD: &str = r#"    def log_in(self, user, password, now=None):
"#;

const LOG_IN_NEW: &str = r#"    def log_in(self, user, password, now=None):
        """A token for the right password, else None."""
"#;

const README_OLD: &str = "- `shop/auth/`: who a customer is\n";

const README_NEW: &str = "- `shop/auth/`: who a customer is ([how to use it](docs/auth.md))\n";
