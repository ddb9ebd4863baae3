/** What stands under the pointer, as elements: nothing from a run is ever read as markup. */

export interface TipRow {
  name: string;
  value: string;
  colour?: string;
}

/** `isCrowded`: there are so many rows that they stand in columns. */
export function tip(title: string, rows: readonly TipRow[], isCrowded = false): HTMLElement {
  const root = element("div", isCrowded ? "tip tip-many" : "tip");
  root.append(element("div", "tip-title", title));
  for (const row of rows) {
    const line = element("div", "tip-row");
    const mark = element("span", "tip-mark");
    if (row.colour !== undefined) mark.style.background = row.colour;
    line.append(mark, element("span", "tip-name", row.name), element("b", "", row.value));
    root.append(line);
  }
  return root;
}

function element(tag: string, name: string, text?: string): HTMLElement {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}
