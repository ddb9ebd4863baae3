/** Which columns the list shows: searched for by name, whether there are ten or thousands. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { ColumnChoices, ListColumn } from "../schema";

interface Properties {
  base: string;
  columns: readonly ListColumn[];
  onColumns: (keys: readonly string[] | null) => void;
  onClose: () => void;
}

const NAME = "name"; // always shown, and always the first

export function ColumnPicker({ base, columns, onColumns, onClose }: Properties) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [words, setWords] = useState("");
  const found = useChoices(base, words);
  useLayoutEffect(() => dialog.current?.showModal(), []);
  // What was chosen here holds at once: the list itself follows when the server has answered.
  const [own, setOwn] = useState<readonly string[] | null>(null);
  const known = new Map(columns.map((column) => [column.key, column]));
  const chosen = (own ?? [...known.keys()]).filter((key) => key !== NAME);
  const choose = (keys: readonly string[] | null): void => {
    setOwn(keys);
    onColumns(keys);
  };
  const toggle = (key: string): void =>
    choose(chosen.includes(key) ? chosen.filter((one) => one !== key) : [...chosen, key]);
  const move = (place: number, by: number): void => {
    const next = [...chosen];
    next.splice(place + by, 0, ...next.splice(place, 1));
    choose(next);
  };
  return (
    <dialog ref={dialog} class="help column-picker" aria-labelledby="picker-title" onClose={onClose}>
      <h2 id="picker-title">Columns</h2>
      <div class="picker-parts">
        <section aria-label="Shown">
          <h3>Shown, in this order</h3>
          <ol>
            {chosen.map((key, place) => (
              <ChosenColumn
                key={key}
                label={known.get(key)?.label ?? key}
                title={known.get(key)?.title ?? ""}
                isFirst={place === 0}
                isLast={place === chosen.length - 1}
                onMove={(by) => move(place, by)}
                onHide={() => toggle(key)}
              />
            ))}
          </ol>
        </section>
        <section aria-label="All columns">
          <input
            type="search"
            autofocus
            value={words}
            placeholder="Search parameters, metrics and facts"
            aria-label="Search the columns"
            onInput={(event) => setWords(event.currentTarget.value)}
          />
          <ul class="picker-choices">
            {found?.columns
              .filter(({ key }) => key !== NAME)
              .map(({ key, label, doc }) => (
                <li key={key}>
                  <label title={doc}>
                    <input
                      type="checkbox"
                      checked={chosen.includes(key)}
                      onChange={() => toggle(key)}
                    />
                    <span class="picker-key">{label}</span>
                    <span class="note">{doc}</span>
                  </label>
                </li>
              ))}
          </ul>
          {found && (
            <p class="note" role="status">
              {found.columns.length < found.total
                ? `The first ${found.columns.length} of ${found.total.toLocaleString("en-US")}: search for others.`
                : `${found.total} columns`}
            </p>
          )}
        </section>
      </div>
      <div class="picker-buttons">
        <button type="button" class="plain" onClick={() => choose(null)}>
          The usual ones
        </button>
        <button type="button" class="plain" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </div>
    </dialog>
  );
}

interface ChosenProperties {
  label: string;
  title: string;
  isFirst: boolean;
  isLast: boolean;
  onMove: (by: 1 | -1) => void;
  onHide: () => void;
}

function ChosenColumn({ label, title, isFirst, isLast, onMove, onHide }: ChosenProperties) {
  const button = (sign: string, words: string, isOff: boolean, act: () => void) => (
    <button type="button" class="quiet" aria-label={words} disabled={isOff} onClick={act}>
      {sign}
    </button>
  );
  return (
    <li>
      <span class="picker-key" title={title}>
        {label}
      </span>
      {button("↑", `Move ${label} to the left`, isFirst, () => onMove(-1))}
      {button("↓", `Move ${label} to the right`, isLast, () => onMove(1))}
      {button("×", `Hide ${label}`, false, onHide)}
    </li>
  );
}

function useChoices(base: string, words: string): ColumnChoices | null {
  const [found, setFound] = useState<ColumnChoices | null>(null);
  useEffect(() => {
    const asking = new AbortController();
    const search = new URLSearchParams({ search: words });
    fetch(`${base}/api/columns?${search}`, { signal: asking.signal })
      .then(async (answer) => answer.ok && setFound((await answer.json()) as ColumnChoices))
      .catch(() => undefined); // another word was typed, or nobody answers: the list says so
    return () => asking.abort();
  }, [base, words]);
  return found;
}
