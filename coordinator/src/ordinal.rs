//! Places in a queue as people read them, for the home page and the shell.

/// `1st`, `2nd`, `3rd`, `4th`.
pub(crate) fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::ordinal;

    #[test]
    fn places_in_the_queue() {
        for (number, expected) in
            [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd"), (113, "113th")]
        {
            assert_eq!(ordinal(number), expected);
        }
    }
}
