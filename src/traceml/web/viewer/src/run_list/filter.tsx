/** The filter of the list: the query language or plain words, with names of columns to choose. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { ColumnChoice, ColumnChoices } from "../schema";

const TYPED_MS = 250; // a pause in typing that long asks the server
const SUGGESTED_MS = 120;
const SUGGESTIONS = 8;
const LANGUAGE = new Set(["and", "or", "not", "in", "is", "contains", "matches", "missing"]);

interface Properties {
  base: string;
  filter: string;
  error: string | null;
  onFilter: (filter: string) => void;
  /** How many match, in words. */
  count: string;
}

export function Filter({ base, filter, error, onFilter, count }: Properties) {
  const [text, setText] = useState(filter);
  const input = useRef<HTMLInputElement>(null);
  const timer = useRef(0);
  useEffect(() => setText(filter), [filter]);
  const apply = (next: string, isNow: boolean): void => {
    setText(next);
    window.clearTimeout(timer.current);
    if (isNow) onFilter(next);
    else timer.current = window.setTimeout(() => onFilter(next), TYPED_MS);
  };
  const suggestions = useSuggestions(base, input, (next, caret) => {
    apply(next, false);
    requestAnimationFrame(() => input.current?.setSelectionRange(caret, caret));
  });
  return (
    <div class="filter-box">
      <div class="filter-line">
        <input
          ref={input}
          type="search"
          data-filter
          value={text}
          spellcheck={false}
          autocomplete="off"
          autocapitalize="off"
          placeholder='Words, or a filter: lr > 0.001 and status = "finished"'
          aria-label="Filter the runs"
          aria-invalid={error !== null}
          aria-autocomplete="list"
          aria-expanded={suggestions.list.length > 0}
          aria-controls="filter-suggestions"
          onInput={(event) => {
            apply(event.currentTarget.value, event.currentTarget.value === "");
            suggestions.look();
          }}
          onKeyDown={(event) => {
            if (suggestions.takeKey(event)) return;
            if (event.key === "Enter") apply(event.currentTarget.value, true);
            if (event.key === "Escape") event.currentTarget.blur();
          }}
          onBlur={suggestions.close}
        />
        <span class="note" role="status">
          {count}
        </span>
      </div>
      {suggestions.list.length > 0 && (
        <ul class="suggestions" id="filter-suggestions" role="listbox" aria-label="Columns">
          {suggestions.list.map((choice, place) => (
            <li
              key={choice.key}
              role="option"
              aria-selected={place === suggestions.active}
              onMouseDown={(event) => {
                event.preventDefault(); // the field keeps the focus
                suggestions.take(choice);
              }}
            >
              <b>{choice.label}</b> <span>{choice.doc}</span>
            </li>
          ))}
        </ul>
      )}
      {error !== null && (
        <pre class="filter-error" role="alert">
          {error}
        </pre>
      )}
    </div>
  );
}

/** The names of columns that the word at the caret may become. */
function useSuggestions(
  base: string,
  input: { current: HTMLInputElement | null },
  write: (text: string, caret: number) => void,
) {
  const [list, setList] = useState<readonly ColumnChoice[]>([]);
  const [active, setActive] = useState(-1);
  const timer = useRef(0);
  const asked = useRef(0);
  const close = (): void => {
    window.clearTimeout(timer.current);
    asked.current += 1;
    setList([]);
    setActive(-1);
  };
  const look = (): void => {
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => void ask(), SUGGESTED_MS);
  };
  const ask = async (): Promise<void> => {
    const number = ++asked.current;
    const word = wordAt(input.current);
    if (word === "" || LANGUAGE.has(word.toLowerCase())) return close();
    try {
      const search = new URLSearchParams({ search: word, limit: String(SUGGESTIONS) });
      const answer = await fetch(`${base}/api/columns?${search}`);
      const found = (await answer.json()) as ColumnChoices;
      if (number !== asked.current) return;
      const isWhole = found.columns.length === 1 && found.columns[0]?.key === word;
      setList(answer.ok && !isWhole ? found.columns : []);
      setActive(-1);
    } catch {
      close(); // nobody answers: the list itself says so
    }
  };
  const take = (choice: ColumnChoice): void => {
    const field = input.current;
    if (field === null) return;
    const caret = field.selectionStart ?? field.value.length;
    const start = caret - wordAt(field).length;
    const text = `${field.value.slice(0, start)}${choice.key} ${field.value.slice(caret)}`;
    close();
    write(text, start + choice.key.length + 1);
  };
  /** Whether a key was for the suggestions. */
  const takeKey = (event: KeyboardEvent): boolean => {
    if (list.length === 0) return false;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const by = event.key === "ArrowDown" ? 1 : -1;
      setActive((active + by + list.length + (active < 0 && by < 0 ? 1 : 0)) % list.length);
    } else if (event.key === "Enter" && active >= 0) take(list[active]!);
    else if (event.key === "Escape") close();
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  };
  return { list, active, look, close, take, takeKey };
}

/** The word that ends at the caret; none inside a text in quotes. */
function wordAt(field: HTMLInputElement | null): string {
  if (field === null) return "";
  const before = field.value.slice(0, field.selectionStart ?? field.value.length);
  if ((before.split('"').length - 1) % 2 === 1) return "";
  return /[\p{L}_][\p{L}\p{N}_./:@%+-]*$/u.exec(before)?.[0] ?? "";
}
