// A little Markdown, made of DOM nodes. The text comes from a model, so it is never parsed as markup by the browser.
import { copy, el } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;

/** Draws text into an element; blocks that did not change keep their nodes, so a growing answer stays calm. */
export function draw(element, text) {
  const blocks = split(text);
  const nodes = [...element.children];
  blocks.forEach((block, index) => {
    const old = nodes[index];
    const source = JSON.stringify(block);
    if (old?.markdownSource === source) return;
    if (block.kind === "code" && old?.markdownKind === "code" && grow(old, block)) {
      old.markdownSource = source;
      return;
    }
    const fresh = MAKERS[block.kind](block);
    fresh.markdownSource = source;
    fresh.markdownKind = block.kind;
    if (old) old.replaceWith(fresh);
    else element.append(fresh);
  });
  for (const extra of nodes.slice(blocks.length)) extra.remove();
}

function grow(old, block) {
  if (old.dataset.language !== block.language) return false;
  old.querySelector("code").textContent = block.text;
  return true;
}

function split(text) {
  const blocks = [];
  let open = null;
  for (const line of text.replace(/\r\n?/g, "\n").split("\n")) {
    if (open?.kind === "code" && !open.closed) {
      if (line.trim().startsWith(open.fence) && /^[`~]+$/.test(line.trim())) open.closed = true;
      else open.text += (open.begun ? "\n" : "") + line;
      open.begun = true;
      if (open.closed) open = null;
      continue;
    }
    open = next(open, line, blocks);
  }
  return blocks;
}

/** The block that a line belongs to; null after a blank line. */
function next(open, line, blocks) {
  const begin = (block) => (blocks.push(block), block);
  let found;
  if (!line.trim()) return null;
  if ((found = FENCE.exec(line))) {
    return begin({ kind: "code", fence: found[1], language: found[2].slice(0, 30), text: "", closed: false });
  }
  if ((found = HEADING.exec(line))) return begin({ kind: "heading", level: found[1].length, text: found[2] }), null;
  if (RULE.test(line)) return begin({ kind: "rule" }), null;
  if ((found = ITEM.exec(line))) {
    const kind = found[2] ? "ordered" : "unordered";
    const list = open?.kind === kind ? open : begin({ kind, start: Number(found[2] ?? 1), items: [] });
    list.items.push({ depth: Math.min(3, Math.floor(found[1].length / 2)), text: found[3] });
    return list;
  }
  if ((found = QUOTE.exec(line))) {
    const quote = open?.kind === "quote" ? open : begin({ kind: "quote", text: "" });
    quote.text += (quote.text ? "\n" : "") + found[1];
    return quote;
  }
  if (open?.items) {
    open.items.at(-1).text += ` ${line.trim()}`;
    return open;
  }
  const paragraph = open?.kind === "paragraph" ? open : begin({ kind: "paragraph", text: "" });
  paragraph.text += (paragraph.text ? "\n" : "") + line;
  return paragraph;
}

const MAKERS = {
  paragraph: (block) => el("p", {}, ...inline(block.text)),
  heading: (block) => el("p", { class: "heading" }, ...inline(block.text)),
  rule: () => el("hr"),
  quote: (block) => el("blockquote", {}, el("p", {}, ...inline(block.text))),
  ordered: (block) => el("ol", { start: block.start }, ...block.items.map(item)),
  unordered: (block) => el("ul", {}, ...block.items.map(item)),
  code: codeBlock,
};

const item = ({ depth, text }) => el("li", depth ? { class: `depth-${depth}` } : {}, ...inline(text));

function codeBlock(block) {
  const code = el("code", {}, block.text);
  const button = el("button", { type: "button" }, "Copy");
  button.addEventListener("click", () => copy(code.textContent, button));
  const bar = el("div", { class: "code-bar" }, el("span", {}, block.language || "code"), button);
  const label = `Code${block.language ? `, ${block.language}` : ""}`;
  const box = el("div", { class: "code-block" }, bar, el("pre", { tabindex: "0", role: "region", "aria-label": label }, code));
  box.dataset.language = block.language;
  return box;
}

const INLINE = /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?)\*\*|\*(?=[^\s*])([^*\n]*[^\s*])\*(?!\w)|\[([^\]\n]{1,300})\]\((https?:\/\/[^\s()<>]{1,2000})\)/gs;

function inline(text) {
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(text.slice(last, found.index));
    nodes.push(piece(found));
    last = found.index + found[0].length;
  }
  nodes.push(text.slice(last));
  return nodes.filter((node) => node !== "");
}

function piece([whole, ticks, code, bold, italic, label, url]) {
  if (ticks) return el("code", {}, code.trim() || code);
  if (bold) return el("strong", {}, ...inline(bold));
  if (italic) return el("em", {}, ...inline(italic));
  if (url) return el("a", { href: url, target: "_blank", rel: "noopener noreferrer", referrerpolicy: "no-referrer" }, label);
  return whole;
}
