//! `swarm cost`: tokens and dollars.

use serde_json::json;
use swarm_protocol::{
    SessionId, WorkerId,
    api::{CostRow, CostView},
};

use super::super::{
    args::{CostArgs, CostBy},
    error::Result,
    format,
    link::Links,
    output::{CYAN, DIM, YELLOW, paint},
    server_process,
    shell::Shell,
    text::{left, right, visible, width},
};

/// Prints what was used: all input, and how much of it was read from the provider's cache and written to it.
pub(crate) async fn cost(shell: &mut Shell, args: &CostArgs) -> Result<u8> {
    let Some(found) = server_process::for_reading(shell).await? else {
        shell.notice("nothing was used yet");
        return Ok(0);
    };
    let view: CostView = found.client.get(&format!("/cost?by={}", args.by.as_str())).await?;
    if shell.is_json() {
        for row in &view.rows {
            let fields = json!({"by": args.by.as_str(), "row": row, "cost_usd": row.cost.exact_usd(),
                "prices_of": view.prices_of});
            shell.json("cost", None, None, fields)?;
        }
        return Ok(0);
    }
    let limit = shell.out.is_terminal.then(|| shell.width());
    let links = Links::find(&shell.around, &shell.out, &found.client.address).await;
    let text = table(&view, args.by, limit, &links);
    shell.out.text(&text)?;
    Ok(0)
}

fn table(view: &CostView, by: CostBy, limit: Option<usize>, links: &Links) -> String {
    let names: Vec<String> = view.rows.iter().map(|row| name(row, by)).collect();
    let widest = names.iter().map(|name| width(name)).max().unwrap_or(0);
    let budgets = view.rows.iter().filter_map(|row| row.budget.as_ref());
    let budgets = budgets.map(|budget| 2 + width(&format::budget(budget))).max().unwrap_or(0);
    // Five columns of figures stand behind the name.
    let cells = match limit {
        Some(limit) => widest.min(limit.saturating_sub(5 * 9 + 2 + budgets)).max(12),
        None => widest,
    };
    let heads = ["input", "read", "written", "output", "cost"].map(|head| right(head, 9)).concat();
    let mut shown = format!("{}{}\n", left("", cells), paint(DIM, &heads));
    for (row, name) in view.rows.iter().zip(names) {
        let unknown = match row.cost.unpriced_calls {
            0 => String::new(),
            n => format!("  {n} n/a"),
        };
        let figures = [
            format::tokens(row.usage.total_input()),
            format::tokens(row.usage.cache_read_tokens),
            format::tokens(row.usage.cache_write_tokens),
            format::tokens(row.usage.output_tokens),
            format::cost(&row.cost),
        ]
        .map(|figure| right(&figure, 9))
        .concat();
        let budget = row.budget.as_ref().map_or_else(String::new, |budget| {
            let style = if format::is_nearly_spent(budget) { YELLOW } else { DIM };
            format!("  {}", paint(style, &format::budget(budget)))
        });
        let name = painted(row, by, &left(&name, cells), links);
        shown.push_str(&format!("{name}{figures}{}{budget}\n", paint(DIM, &unknown)));
    }
    if view.rows.iter().any(|row| row.cost.known_usd > 0.0) {
        shown.push_str(&paint(DIM, &format!("prices of {}\n", visible(&view.prices_of))));
    }
    shown
}

/// The name as it stands in its column; the id at its start leads to its page.
fn painted(row: &CostRow, by: CostBy, column: &str, links: &Links) -> String {
    let (id, rest) = column.split_at(column.find(' ').unwrap_or(column.len()));
    let painted = paint(CYAN, id);
    let id = match (by, row.key.parse::<SessionId>(), row.key.parse::<WorkerId>()) {
        (CostBy::Session | CostBy::Worker, Ok(session), _) => links.session(session, &painted),
        (CostBy::Worker, _, Ok(worker)) => links.worker(&worker, &painted),
        _ => painted,
    };
    format!("{id}{}", paint(CYAN, rest))
}

fn name(row: &CostRow, by: CostBy) -> String {
    let label = visible(&row.label);
    let key = visible(&row.key);
    match by {
        CostBy::Session => {
            let short = row.key.parse::<SessionId>().map_or(key, |id| id.short());
            format!("{short} {label}")
        }
        // The coordinator's own part stands under its session.
        CostBy::Worker if let Ok(session) = row.key.parse::<SessionId>() => {
            format!("{} {label}", session.short())
        }
        CostBy::Worker => format!("{} {label}", key.trim_start_matches(WorkerId::PREFIX)),
        CostBy::Model | CostBy::Day => key,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use swarm_protocol::{
        Usage,
        usage::{BudgetView, Caps, Cost},
    };

    use super::*;

    #[test]
    fn a_sum_with_unknowns_says_so() {
        let row = |key: &str, label: &str, cost| CostRow {
            key: key.to_owned(),
            label: label.to_owned(),
            usage: Usage {
                input_tokens: 52_000,
                output_tokens: 21_000,
                cache_read_tokens: 213_000,
                cache_write_tokens: 30_500,
                ..Usage::default()
            },
            cost,
            calls: 3,
            budget: None,
        };
        let caps = Caps { usd: Some(2.0), tokens: None };
        let budget = Some(BudgetView { caps, spent_usd: 1.62, percent: 81, ..BudgetView::default() });
        let view = CostView {
            rows: vec![
                CostRow {
                    budget,
                    ..row(crate::cli::fixtures::SESSION, "refactor auth module", Cost::usd(1.62))
                },
                row(
                    "01a22d8c-a610-7b1d-9a44-52f00b44fe17",
                    "port parser",
                    Cost { known_usd: 0.4, unpriced_calls: 1 },
                ),
            ],
            prices_of: "2026-11-01".to_owned(),
        };
        let text = anstream::adapter::strip_str(&table(&view, CostBy::Session, Some(80), &Links::default()))
            .to_string();
        expect![[r#"
                                  input     read  written   output     cost
            7c1d09e2 refacto..     296k     213k      31k      21k    $1.62  81 % of $2.00
            0b44fe17 port pa..     296k     213k      31k      21k   >$0.40  1 n/a
            prices of 2026-11-01
        "#]]
        .assert_eq(&text);
    }
}
