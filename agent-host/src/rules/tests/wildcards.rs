use super::{globs::may_meet, wildcard::matches};

#[test]
fn stars() {
    assert!(matches("git *", "git x y"));
    assert!(matches("*.rs", "a.rs"));
    assert!(matches("a*b*c", "axxbyyc"));
    assert!(!matches("a*b*c", "axxbyy"));
    assert!(matches(r"a\*b", "a*b"));
    assert!(!matches(r"a\*b", "axb"));
    assert!(matches("*", ""));
}

#[test]
fn globs_of_the_shell_and_of_rules() {
    assert!(may_meet("/w/.e*", "/w/**/.env"));
    assert!(!may_meet("/w/*", "/w/**/.env"));
    assert!(!may_meet("/w/*", "/w/**/.env/**"));
    assert!(may_meet("/w/*", "/w/**/secret"));
    assert!(may_meet("/w/a*.env", "/w/**/a*"));
    assert!(may_meet("/w/*", "/w/a.env"));
    assert!(!may_meet("/w/docs/*.md", "/w/**/.env"));
    assert!(may_meet("/w/*/x", "/w/**/x"));
    assert!(may_meet("/w/[s]ecret", "/w/secret"));
}
