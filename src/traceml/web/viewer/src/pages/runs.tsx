/** All runs under a folder: filter them, sort them, group them, open one, or compare some. */

import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Notes } from "../pieces/notes";
import { joined, type ListChoices, queryOf, useListChoices } from "../run_list/choices";
import { ColumnPicker } from "../run_list/column_picker";
import { Filter } from "../run_list/filter";
import { ListRows, type ListState, NO_LIST } from "../run_list/rows";
import type { RowActions } from "../run_list/run_line";
import { SelectionBar } from "../run_list/selection_bar";
import { ListTools } from "../run_list/list_tools";
import { RunTable } from "../run_list/table";
import { TagEditor } from "../run_list/tag_editor";
import type { GroupRow, ListRow, RunsPage } from "../schema";
import "../run_list/run_list.css";

interface Properties {
  base: string;
  /** Told whether the server has not answered for a while. */
  onLost: (isLost: boolean) => void;
}

export function RunsView({ base, onLost }: Properties) {
  const [choices, choose] = useListChoices();
  const query = queryOf(choices).toString();
  const [rows, state, scroller] = useRows(base, query);
  const latest = useLatest({ choices, rows, base });
  const [isPicking, setPicking] = useState(false);
  const [tagged, setTagged] = useState<ListRow | readonly string[] | null>(null);
  const actions = useActions(base, latest, choose, setTagged);
  useEffect(() => onLost(state.isLost), [state.isLost]);
  useSelectedAll(base, choices, choose);
  const selected = useMemo(() => new Set(choices.selected), [choices.selected]);
  const { page } = state;
  const filter = (
    <Filter
      base={base}
      filter={choices.filter}
      error={state.error}
      onFilter={(words) => choose({ filter: words, isAll: false })}
      count={page === null ? "" : countWords(page, choices)}
    />
  );
  if (page === null) {
    return state.error === null ? <Waiting /> : <Refused>{filter}</Refused>;
  }
  const columns = joined(page.columns.map(({ key }) => key));
  return (
    <>
      {page.run_count === 0 ? (
        <Nothing folder={page.folder} />
      ) : (
        <section class="card part run-list" aria-label="Runs">
          <div class="list-head">
            {filter}
            <ListTools
              page={page}
              choices={choices}
              base={base}
              choose={choose}
              onColumns={() => setPicking(true)}
            />
          </div>
          <RunTable
            page={page}
            rows={rows}
            isOld={state.isOld}
            sort={choices.sort}
            onSort={(sort) => choose({ sort })}
            selected={selected}
            isAll={choices.isAll && selected.size > 0}
            onAll={() => choose(selected.size > 0 ? NO_SELECTION : { isAll: true })}
            actions={actions}
            onGroup={(row) => choose({ filter: row.filter, group: "", columns: "", sort: "" })}
            onGroupSelect={(row) => choose(withGroup(choices, row))}
            onScroller={scroller}
          />
          {page.total === 0 && <p class="note">No run matches “{choices.filter}”.</p>}
        </section>
      )}
      <Notes title="Notes" lines={page.notes} />
      {choices.selected.length > 0 && (
        <SelectionBar
          base={base}
          names={choices.selected}
          sideA={sidesOf(choices)}
          baseline={choices.baseline}
          isAll={choices.isAll}
          filter={choices.filter}
          sort={choices.sort}
          columns={choices.group === "" ? columns : choices.columns}
          onSide={(name) => choose({ sideA: moved(sidesOf(choices), name) })}
          onDrop={(name) => choose(without(choices, name))}
          onClear={() => choose(NO_SELECTION)}
          onBaseline={(name) => choose({ baseline: name })}
          onTags={() => setTagged(only(choices, rows) ?? choices.selected)}
        />
      )}
      {isPicking && (
        <ColumnPicker
          base={base}
          columns={page.columns}
          onColumns={(keys) => choose({ columns: keys === null ? "" : joined(keys) || "name" })}
          onClose={() => setPicking(false)}
        />
      )}
      {tagged !== null && (
        <TagEditor
          base={base}
          target={tagged}
          onChanged={() => rows.refresh()}
          onClose={() => setTagged(null)}
        />
      )}
    </>
  );
}

const NO_SELECTION = { selected: [], sideA: [], isAll: false } as const;

/** The rows behind the table, asked for by the query. */
function useRows(base: string, query: string) {
  const [state, setState] = useState<ListState>(NO_LIST);
  const scrolled = useRef<{ element: HTMLElement; rowPx: number } | null>(null);
  const rows = useMemo(
    () =>
      new ListRows(base, setState, (places) => {
        const at = scrolled.current;
        if (at !== null) at.element.scrollTop += places * at.rowPx;
      }),
    [base],
  );
  useEffect(() => rows.start(), [rows]);
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) scrolled.current?.element.scrollTo({ top: 0 });
    isFirst.current = false;
    rows.setQuery(query);
  }, [rows, query]);
  const onScroller = useCallback((element: HTMLElement | null, rowPx: number) => {
    scrolled.current = element === null ? null : { element, rowPx };
  }, []);
  return [rows, state, onScroller] as const;
}

/** A box that always holds the newest: functions in it need not be made anew. */
function useLatest<T>(value: T): { current: T } {
  const box = useRef(value);
  box.current = value;
  return box;
}

interface Latest {
  choices: ListChoices;
  rows: ListRows;
  base: string;
}

function useActions(
  base: string,
  latest: { current: Latest },
  choose: (news: Partial<ListChoices>) => void,
  editTags: (row: ListRow) => void,
): RowActions {
  const anchor = useRef<number | null>(null);
  return useMemo(
    () => ({
      base,
      select: (name, index, isRange) => {
        const { choices } = latest.current;
        const from = anchor.current;
        if (index !== null) anchor.current = index;
        if (isRange && index !== null && from !== null && from !== index) {
          const isOn = !choices.selected.includes(name);
          void namesBetween(latest.current, from, index).then((names) =>
            choose(isOn ? withNames(latest.current.choices, names) : withoutNames(latest.current.choices, names)),
          );
          return;
        }
        choose(toggled(choices, name));
      },
      setBaseline: (name) => choose({ baseline: name }),
      filterByTag: (tag) => {
        const { filter } = latest.current.choices;
        const wanted = `tags contains ${JSON.stringify(tag)}`;
        const isFilter = /[<>=!~()"']/.test(filter);
        if (filter.includes(wanted)) return;
        choose({ filter: isFilter ? `${filter} and ${wanted}` : wanted, isAll: false });
      },
      editTags,
    }),
    [base],
  );
}

/** The names from one row to another; those that were never in sight are asked for. */
async function namesBetween({ rows, choices, base }: Latest, one: number, other: number) {
  const [first, last] = [Math.min(one, other), Math.max(one, other)];
  const known: string[] = [];
  for (let place = first; place <= last; place++) {
    const row = rows.at(place);
    if (row === null || !("name" in row)) return askNames(base, choices, first, last - first + 1);
    known.push(row.name);
  }
  return known;
}

/** The names of the runs that match, in the order of the list; with no limit all of them. */
async function askNames(
  base: string,
  choices: ListChoices,
  offset = 0,
  limit = 0,
): Promise<readonly string[]> {
  const query = new URLSearchParams({
    columns: "name",
    offset: String(offset),
    limit: String(limit),
  });
  if (choices.filter.trim() !== "") query.set("q", choices.filter);
  if (choices.sort !== "" && choices.group === "") query.set("sort", choices.sort);
  const answer = await fetch(`${base}/api/search?${query}`);
  if (!answer.ok) return [];
  const found = (await answer.json()) as { runs: readonly { name: string }[] };
  return found.runs.map(({ name }) => name);
}

/** Where all that match are selected, their names are asked for. */
function useSelectedAll(
  base: string,
  choices: ListChoices,
  choose: (news: Partial<ListChoices>) => void,
): void {
  useEffect(() => {
    if (!choices.isAll) return;
    let isWanted = true;
    void askNames(base, choices).then((selected) => {
      if (isWanted) choose({ selected, sideA: [], isAll: selected.length > 0 });
    });
    return () => {
      isWanted = false;
    };
  }, [choices.isAll, choices.filter]);
}

function toggled(choices: ListChoices, name: string): Partial<ListChoices> {
  if (choices.selected.includes(name)) return without(choices, name);
  return { selected: [...choices.selected, name], isAll: false };
}

function without(choices: ListChoices, name: string): Partial<ListChoices> {
  return withoutNames(choices, [name]);
}

function withNames(choices: ListChoices, names: readonly string[]): Partial<ListChoices> {
  return { selected: [...new Set([...choices.selected, ...names])], isAll: false };
}

function withoutNames(choices: ListChoices, names: readonly string[]): Partial<ListChoices> {
  const out = new Set(names);
  const left = (side: readonly string[]): string[] => side.filter((one) => !out.has(one));
  return { selected: left(choices.selected), sideA: left(choices.sideA), isAll: false };
}

function withGroup(choices: ListChoices, { names }: GroupRow): Partial<ListChoices> {
  const isOn = !names.every((name) => choices.selected.includes(name));
  if (!isOn) return withoutNames(choices, names);
  const news = withNames(choices, names);
  // The first group is what others are compared with.
  return choices.selected.length === 0 ? { ...news, sideA: names } : news;
}

/** Side A: the baseline, or whom the reader put there, or the first run. */
function sidesOf({ baseline, selected, sideA }: ListChoices): readonly string[] {
  const chosen = sideA.filter((name) => selected.includes(name));
  if (chosen.length > 0) return chosen;
  return baseline !== "" ? [baseline] : selected.slice(0, 1);
}

function moved(side: readonly string[], name: string): readonly string[] {
  return side.includes(name) ? side.filter((one) => one !== name) : [...side, name];
}

/** The row of the only selected run, where it is at hand. */
function only({ selected }: ListChoices, rows: ListRows): ListRow | null {
  const row = selected.length === 1 ? rows.named(selected[0]!) : null;
  return row !== null && "name" in row ? row : null;
}

function countWords(page: RunsPage, { filter, group }: ListChoices): string {
  const number = (count: number): string => count.toLocaleString("en-US");
  const all = `${number(page.run_count)} ${page.run_count === 1 ? "run" : "runs"}`;
  if (group !== "") return `${number(page.total)} ${page.total === 1 ? "group" : "groups"}`;
  return filter.trim() === "" || page.total === page.run_count
    ? all
    : `${number(page.total)} of ${all}`;
}

function Nothing({ folder }: { folder: string }) {
  return (
    <p class="card empty">
      <span>
        There are no runs here yet. Start one with <code>traceml run train.py</code>: it appears by
        itself.
      </span>
      <span class="command">{folder}</span>
    </p>
  );
}

function Waiting() {
  return (
    <p class="waiting" role="status">
      Reading the runs…
    </p>
  );
}

/** The address asks for what cannot be understood: it can be mended, or left. */
function Refused({ children }: { children: ComponentChildren }) {
  return (
    <section class="card part run-list" aria-label="Runs">
      {children}
      <p>
        <a href="?">All runs, with the usual columns</a>
      </p>
    </section>
  );
}
