import { lexer, type Token, type Tokens } from "marked";
import { memo, useMemo } from "react";

/**
 * Markdown to elements: no string of HTML is ever made, and links lead to http(s) only. Nothing of the text is left out:
 * a person decides by what they see here, and an agent reads all of it.
 */
export const Markdown = memo(function Markdown({ text }: { text: string }) {
  const tokens = useMemo(() => lexer(text, { gfm: true }), [text]);
  return <div className="md">{blocks(tokens)}</div>;
});

function blocks(tokens: Token[]): React.ReactNode[] {
  return tokens.map((token, index) => <BlockToken key={`${index}${token.type}`} token={token} />);
}

function BlockToken({ token }: { token: Token }): React.ReactNode {
  switch (token.type) {
    case "space":
      return null;
    case "heading": {
      // Headings of foreign text do not enter the outline of the page.
      return <p className={`md-h md-h${token["depth"]}`}>{inline(token.tokens)}</p>;
    }
    case "paragraph":
      return <p>{inline(token.tokens)}</p>;
    case "text":
      return token.tokens ? <>{inline(token.tokens)}</> : <>{token["text"]}</>;
    case "code": {
      const words = String(token["lang"] ?? "");
      return (
        <pre>
          {/* The name of a language goes without saying; more than that does not. */}
          <code>{/\s/.test(words) ? `${words}\n${token["text"]}` : token["text"]}</code>
        </pre>
      );
    }
    case "blockquote":
      return <blockquote>{blocks(token.tokens ?? [])}</blockquote>;
    case "hr":
      return <hr />;
    case "list": {
      const list = token as Tokens.List;
      const items = list.items.map((item, index) => (
        <li key={index}>
          {item.task ? <input type="checkbox" checked={item.checked === true} readOnly disabled /> : null}
          {blocks(item.tokens.filter((part) => part.type !== "checkbox"))}
        </li>
      ));
      return list.ordered ? <ol start={list.start === "" ? 1 : list.start}>{items}</ol> : <ul>{items}</ul>;
    }
    case "table": {
      const table = token as Tokens.Table;
      return (
        <div className="md-table">
          <table>
            <thead>
              <tr>
                {table.header.map((cell, index) => (
                  <th key={index}>{inline(cell.tokens)}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {table.rows.map((row, at) => (
                <tr key={at}>
                  {row.map((cell, index) => (
                    <td key={index}>{inline(cell.tokens)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    }
    default:
      return <p className="pre">{token.raw}</p>;
  }
}

function inline(tokens: Token[] | undefined): React.ReactNode[] {
  return (tokens ?? []).map((token, index) => <InlineToken key={`${index}${token.type}`} token={token} />);
}

function safeLink(href: string): string | null {
  try {
    const url = new URL(href);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}

function InlineToken({ token }: { token: Token }): React.ReactNode {
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens)}</strong>;
    case "em":
      return <em>{inline(token.tokens)}</em>;
    case "del":
      return <del>{inline(token.tokens)}</del>;
    case "codespan":
      return <code>{token["text"]}</code>;
    case "br":
      return <br />;
    case "link": {
      const href = safeLink(String(token["href"]));
      if (href === null) return <>{token.raw}</>;
      return (
        <a href={href} target="_blank" rel="noreferrer noopener" title={href}>
          {inline(token.tokens)}
          {token["title"] ? ` (${token["title"]})` : null}
        </a>
      );
    }
    case "image":
      // Nothing is fetched from elsewhere.
      return <>{token.raw}</>;
    case "text":
      return token.tokens ? <>{inline(token.tokens)}</> : <>{token["text"]}</>;
    case "escape":
      return <>{token["text"]}</>;
    default:
      return <>{token.raw}</>;
  }
}
