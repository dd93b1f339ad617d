//! Notebooks, read and changed.

use super::*;
use crate::tools::read::drawn;
use base64::{Engine as _, prelude::BASE64_STANDARD};

#[tokio::test]
async fn outputs_of_one_cell_are_bounded() {
    let place = Place::new();
    let output = json!({"name": "stderr", "output_type": "stream", "text": ["x".repeat(9_000)]});
    let cell = json!({
        "cell_type": "code", "execution_count": 1, "id": "a", "metadata": {}, "source": ["run()"],
        "outputs": vec![output; 1_500],
    });
    place.put(
        "n.ipynb",
        json!({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).to_string(),
    );
    let shown = place.read("n.ipynb").await;
    says(&shown, false, "more outputs of cell 1 are left out]");
    assert!(said(&shown).len() < 150_000, "{}", said(&shown).len());
}

/// As Jupyter writes it: one space for a step, keys in order, a float that another writer would change.
fn notebook() -> String {
    let picture = BASE64_STANDARD.encode(drawn(8, 8, image::ImageFormat::Png));
    format!(
        r##"{{
 "cells": [
  {{
   "cell_type": "markdown",
   "id": "title",
   "metadata": {{}},
   "source": [
    "# Títle\n",
    "words"
   ]
  }},
  {{
   "cell_type": "code",
   "execution_count": 7,
   "id": "plot",
   "metadata": {{"collapsed":   true}},
   "outputs": [
    {{
     "name": "stdout",
     "output_type": "stream",
     "text": [
      "\u001b[31mred\u001b[0m\n"
     ]
    }},
    {{
     "data": {{
      "image/png": "{picture}\n",
      "text/plain": [
       "<Figure>"
      ]
     }},
     "metadata": {{}},
     "output_type": "display_data"
    }},
    {{
     "ename": "ValueError",
     "evalue": "no",
     "output_type": "error",
     "traceback": [
      "line 1"
     ]
    }}
   ],
   "source": [
    "plot()"
   ]
  }}
 ],
 "metadata": {{
  "custom": {{"value": 0.1000000000000000055511151231257827, "big": 1E400}}
 }},
 "nbformat": 4,
 "nbformat_minor": 5
}}
"##
    )
}

impl Place {
    async fn cell(&self, input: Value) -> ToolOutput {
        self.call("NotebookEdit", input).await
    }
}

#[tokio::test]
async fn a_notebook_is_read_by_cells_with_its_outputs() {
    let place = Place::new();
    place.put("n.ipynb", notebook());
    let output = place.read("n.ipynb").await;
    says(&output, false, "[cell 1, markdown, id title]\n# Títle\nwords\n");
    says(
        &output,
        false,
        "[cell 2, code, id plot]\nplot()\n[stdout of cell 2]\nred\n[output of cell 2]\n<Figure>\n[PNG, 8 x 8 pixels]",
    );
    assert!(matches!(output.content[1], ResultBlock::Image { .. }));
    assert_eq!(output.content[2], ResultBlock::text("[error of cell 2]\nValueError: no\nline 1"));
    let one = place.call("Read", json!({"file_path": "n.ipynb", "limit": 1})).await;
    says(&one, false, "[cells 1 to 1 of 2; go on with offset 2]");
    place.put("broken.ipynb", "{\"cells\": [");
    let output = place.read("broken.ipynb").await;
    says(&output, false, "     1\t{\"cells\": [");
    assert!(matches!(&output.content[1], ResultBlock::Text { text } if text.contains("its JSON is broken")));
    says(&place.edit("broken.ipynb", "[", "[]}", false).await, false, "was edited");
}

#[tokio::test]
async fn a_cell_is_replaced_and_every_other_byte_stays() {
    let place = Place::new();
    let path = place.put("n.ipynb", notebook());
    let replace = json!({"notebook_path": "n.ipynb", "cell_id": "plot", "new_source": "a\n\"b\""});
    says(&place.cell(replace.clone()).await, true, "has not been read yet");
    place.read("n.ipynb").await;
    says(
        &place.cell(replace.clone()).await,
        false,
        "Cell 2 of n.ipynb was replaced. Its outputs were of the old source",
    );
    let before = notebook();
    let outputs = before.find("   \"outputs\"").unwrap()..before.find("  }\n ],\n \"metadata\"").unwrap();
    let mut expected = before;
    expected.replace_range(
        outputs,
        "   \"outputs\": [],\n   \"source\": [\n    \"a\\n\",\n    \"\\\"b\\\"\"\n   ]\n",
    );
    let expected = expected.replace("\"execution_count\": 7", "\"execution_count\": null");
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    says(&place.cell(replace).await, true, "has this source already");
    says(&place.edit("n.ipynb", "a", "b", false).await, true, "Change its cells with NotebookEdit");
}

#[tokio::test]
async fn cells_are_put_in_and_taken_out() {
    let place = Place::new();
    let path = place.put("n.ipynb", notebook());
    place.read("n.ipynb").await;
    let insert = |after: Option<&str>, kind: &str| json!({"notebook_path": "n.ipynb", "cell_id": after, "new_source": "new", "cell_type": kind, "edit_mode": "insert"});
    let delete = |name: &str| json!({"notebook_path": "n.ipynb", "cell_id": name, "edit_mode": "delete"});
    let kinds = || {
        let text = fs::read_to_string(&path).unwrap();
        let whole: Value = serde_json::from_str(&text.replace("1E400", "1")).unwrap();
        assert_eq!(whole["nbformat_minor"], 5);
        let cells = whole["cells"].as_array().unwrap().clone();
        assert!(cells.iter().all(|cell| cell["id"].as_str().is_some_and(|id| !id.is_empty())), "{text}");
        cells.iter().map(|cell| cell["cell_type"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    says(&place.cell(insert(None, "raw")).await, false, "put in as cell 1; n.ipynb has 3 cells now");
    says(&place.cell(insert(Some("plot"), "code")).await, false, "put in as cell 4");
    assert_eq!(kinds(), ["raw", "markdown", "code", "code"]);
    assert_eq!(said(&place.cell(delete("4")).await), "Cell 4 was deleted; n.ipynb has 3 cells now.");
    place.cell(delete("1")).await;
    assert_eq!(fs::read_to_string(&path).unwrap(), notebook(), "there and back again");
    let retyped =
        json!({"notebook_path": "n.ipynb", "cell_id": 2, "new_source": "plot()", "cell_type": "markdown"});
    says(&place.cell(retyped).await, false, "was replaced");
    assert!(!fs::read_to_string(&path).unwrap().contains("outputs"));
    for name in ["title", "plot"] {
        place.cell(delete(name)).await;
    }
    assert!(fs::read_to_string(&path).unwrap().starts_with("{\n \"cells\": [],\n"));
    place.cell(insert(None, "code")).await;
    assert_eq!(kinds(), ["code"]);
    for (input, words) in [
        (delete("nobody"), "has no cell `nobody`; it has 1 cells"),
        (json!({"notebook_path": "n.ipynb", "new_source": "x"}), "needs its `cell_id`"),
        (json!({"notebook_path": "n.ipynb", "new_source": "x", "edit_mode": "insert"}), "needs `cell_type`"),
    ] {
        says(&place.cell(input).await, true, words);
    }
}

#[tokio::test]
async fn a_notebook_on_one_line_with_texts_for_lists_and_other_line_ends_keeps_its_style() {
    let place = Place::new();
    let path = place.put(
        "n.ipynb",
        r#"{"nbformat":4,"nbformat_minor":4,"cells":[{"cell_type":"raw","source":"a","metadata":{}}]}"#,
    );
    place.read("n.ipynb").await;
    place.cell(json!({"notebook_path": "n.ipynb", "cell_id": "cell 1", "new_source": "é\nb"})).await;
    place.cell(json!({"notebook_path": "n.ipynb", "cell_id": "1", "new_source": "c", "cell_type": "raw", "edit_mode": "insert"})).await;
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        r#"{"nbformat":4,"nbformat_minor":4,"cells":[{"cell_type":"raw","source":"é\nb","metadata":{}},{"cell_type":"raw","metadata":{},"source":["c"]}]}"#
    );
    let path = place
        .put("crlf.ipynb", "{\r\n  \"cells\": [],\r\n  \"nbformat\": 4,\r\n  \"nbformat_minor\": 2\r\n}");
    place.read("crlf.ipynb").await;
    place.cell(json!({"notebook_path": "crlf.ipynb", "new_source": "x", "cell_type": "raw", "edit_mode": "insert"})).await;
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with(
            "{\r\n  \"cells\": [\r\n    {\r\n      \"cell_type\": \"raw\",\r\n      \"metadata\": {},\r\n"
        ),
        "{text:?}"
    );
    assert!(!text.replace("\r\n", "").contains('\n') && text.ends_with('}'));
    place.put("old.ipynb", r#"{"nbformat":3,"worksheets":[]}"#);
    place.read("old.ipynb").await;
    says(
        &place.cell(json!({"notebook_path": "old.ipynb", "cell_id": "1", "new_source": "x"})).await,
        true,
        "format is 3",
    );
}

#[tokio::test]
async fn a_notebook_that_somebody_else_saved_is_changed_only_where_they_did_not() {
    let place = Place::new();
    let path = place.put("n.ipynb", notebook());
    place.read("n.ipynb").await;
    let theirs = notebook().replace("# Títle", "# Other");
    fs::write(&path, &theirs).unwrap();
    let replace = |name: &str| json!({"notebook_path": "n.ipynb", "cell_id": name, "new_source": "new"});
    says(&place.cell(replace("title")).await, true, "was changed on disk since you read it:\n@@ line 8 @@");
    assert_eq!(fs::read_to_string(&path).unwrap(), theirs);
    says(&place.cell(replace("plot")).await, false, "In another place it was changed on disk");
    assert!(fs::read_to_string(&path).unwrap().contains("# Other"));
}
