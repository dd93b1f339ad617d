//! Results that were not sent yet are cut to head and tail when they are too long; the whole is kept on
//! disk. Never acts on what a provider has seen (spec 3.2).

use swarm_protocol::ResultBlock;

/// What the results of one turn may hold together, in characters.
pub const PER_TURN_CHARS: usize = 200_000;

/// A result, as the budget of a turn sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its characters.
    pub chars: usize,
    /// Whether it may not be cut (Read pages instead).
    pub exempt: bool,
}

/// Characters of text in a result.
pub fn chars_of(content: &[ResultBlock]) -> usize {
    content.iter().filter_map(ResultBlock::as_text).map(|text| text.chars().count()).sum()
}

/// The texts of a result, joined: what is kept on disk.
pub fn whole_text(content: &[ResultBlock]) -> String {
    let texts: Vec<&str> = content.iter().filter_map(ResultBlock::as_text).collect();
    texts.join("\n")
}

/// Head and tail, each a tenth of `budget`, with the path of the whole and its size between; pictures stay.
pub fn cut(content: &[ResultBlock], budget: usize, path: Option<&str>) -> Vec<ResultBlock> {
    let text = whole_text(content);
    let total = text.chars().count();
    let part = (budget / 10).max(1);
    if total <= part * 2 {
        return content.to_vec();
    }
    let head: String = text.chars().take(part).collect();
    let tail: String = text.chars().skip(total - part).collect();
    let place = match path {
        Some(path) => format!("the whole result is in {path}"),
        None => "the rest was not kept".to_owned(),
    };
    let cut =
        format!("{head}\n\n[cut: {} of {total} characters left out; {place}]\n\n{tail}", total - part * 2);
    let pictures = content.iter().filter(|part| matches!(part, ResultBlock::Image { .. })).cloned();
    std::iter::once(ResultBlock::text(cut)).chain(pictures).collect()
}

/// The results of a turn that are to be cut so that the turn fits: the largest first, as few as do. Exempt
/// ones never.
pub fn over_the_turn(sizes: &[Size], budget: usize) -> Vec<usize> {
    let mut total: usize = sizes.iter().map(|size| size.chars).sum();
    let mut order: Vec<usize> = (0..sizes.len()).filter(|&index| !sizes[index].exempt).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(sizes[index].chars), index));
    let mut cut = Vec::new();
    for index in order {
        if total <= budget {
            break;
        }
        total -= sizes[index].chars;
        cut.push(index);
    }
    cut.sort_unstable();
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_stay_with_path_and_size() {
        let text = format!("{}{}{}", "a".repeat(10), "b".repeat(80), "c".repeat(10));
        let cut = cut(&[ResultBlock::text(text)], 50, Some("/x/y"));
        assert_eq!(
            whole_text(&cut),
            "aaaaa\n\n[cut: 90 of 100 characters left out; the whole result is in /x/y]\n\nccccc"
        );
    }

    #[test]
    fn the_largest_of_a_turn_are_cut_and_exempt_ones_never() {
        let sizes = |list: &[(usize, bool)]| -> Vec<Size> {
            list.iter().map(|&(chars, exempt)| Size { chars, exempt }).collect()
        };
        let check = |list: &[(usize, bool)], expected: &[usize]| {
            assert_eq!(over_the_turn(&sizes(list), 100), expected);
        };
        check(&[], &[]);
        check(&[(60, false), (40, false)], &[]);
        check(&[(60, false), (41, false)], &[0]);
        check(&[(60, true), (41, false)], &[1]);
        check(&[(90, true), (90, true)], &[]);
        check(&[(10, false), (70, false), (80, false)], &[2]);
    }
}
