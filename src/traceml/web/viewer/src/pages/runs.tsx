/** All runs under a folder: filter them, sort them, open one, or compare some. */

import { useEffect, useState } from "preact/hooks";
import { readChoice, readChoicesOf, rememberList, writeChoices } from "../address";
import { localTime } from "../numbers";
import { comparisonAddress, runAddress } from "../place";
import { Notes } from "../pieces/notes";
import { Badge, StatePill } from "../pieces/tone";
import type { RunRow, RunsPage } from "../schema";
import { still } from "../still";

type Column = "name" | "status" | "step_time" | "steps" | "duration" | "ranks" | "started";

interface Order {
  column: Column;
  isDown: boolean;
}

const TITLES: Record<Column, string> = {
  name: "Run",
  status: "Diagnosis",
  step_time: "Step time",
  steps: "Steps",
  duration: "Duration",
  ranks: "Ranks",
  started: "Started",
};
const COLUMNS = Object.keys(TITLES) as Column[];
const SEVERITY = ["crit", "warn", "info", "good", "muted"];

interface Properties {
  page: RunsPage;
  base: string;
  canCompare: boolean;
}

/** What the reader made of the list; it is in the address, so that Back finds it again. */
interface Choices {
  filter: string;
  order: Order;
  /** In the order of choosing. */
  a: readonly string[];
  b: readonly string[];
}

const NEWEST_FIRST: Order = { column: "started", isDown: true };

function readChoices(): Choices {
  return {
    filter: readChoice("q") ?? "",
    order: orderIn(readChoice("sort")),
    a: readChoicesOf("a"),
    b: readChoicesOf("b"),
  };
}

/** "steps" is upwards, "-steps" downwards. */
function orderIn(text: string | null): Order {
  const column = COLUMNS.find((one) => one === text?.replace(/^-/, ""));
  return column === undefined ? NEWEST_FIRST : { column, isDown: text!.startsWith("-") };
}

function useChoices(): [Choices, (news: Partial<Choices>) => void] {
  const [choices, setChoices] = useState(readChoices);
  useEffect(rememberList, []);
  const choose = (news: Partial<Choices>): void => {
    const next = { ...choices, ...news };
    const { column, isDown } = next.order;
    const isUsual = column === NEWEST_FIRST.column && isDown === NEWEST_FIRST.isDown;
    writeChoices({
      q: next.filter,
      sort: isUsual ? null : `${isDown ? "-" : ""}${column}`,
      a: next.a,
      b: next.b,
    });
    rememberList();
    setChoices(next);
  };
  return [choices, choose];
}

export function RunsView({ page, base, canCompare }: Properties) {
  const [{ filter, order, ...picked }, choose] = useChoices();
  const names = new Set(page.runs.map((run) => run.name));
  const [a, b] = [picked.a, picked.b].map((side) => side.filter((name) => names.has(name)));
  const shown = page.runs.filter((run) => matches(run, filter));
  const sides: Sides = { a: a!, b: b! };
  const pick = (name: string): void => choose(toggled(sides, name));
  const move = (name: string): void => choose(moved(sides, name));
  return (
    <>
      <section class="head" aria-label="The list">
        <p class="command">{page.folder}</p>
      </section>
      {page.runs.length === 0 ? (
        <Nothing />
      ) : (
        <section class="card part" aria-label="Runs">
          <div class="filter">
            <Filter
              filter={filter}
              onFilter={(text) => choose({ filter: text })}
              count={shown.length}
              of={page.runs.length}
            />
            <SortBy order={order} onOrder={(next) => choose({ order: next })} />
          </div>
          <List
            runs={sorted(shown, order)}
            base={base}
            order={order}
            onOrder={(next) => choose({ order: next })}
            sides={canCompare ? sides : null}
            onPick={pick}
          />
          {shown.length === 0 && <p class="note">No run matches “{filter}”.</p>}
        </section>
      )}
      <Notes title="Notes" lines={page.notes} />
      {a!.length + b!.length > 0 && (
        <Compare
          sides={sides}
          base={base}
          onMove={move}
          onDrop={pick}
          onClear={() => choose({ a: [], b: [] })}
        />
      )}
    </>
  );
}

interface Sides {
  a: readonly string[];
  b: readonly string[];
}

/** The first run is A, what others are compared with; every further one is B. */
function toggled({ a, b }: Sides, name: string): Sides {
  const without = (side: readonly string[]): string[] => side.filter((one) => one !== name);
  if (a.includes(name) || b.includes(name)) return { a: without(a), b: without(b) };
  return a.length === 0 ? { a: [name], b } : { a, b: [...b, name] };
}

function moved({ a, b }: Sides, name: string): Sides {
  const without = (side: readonly string[]): string[] => side.filter((one) => one !== name);
  return a.includes(name) ? { a: without(a), b: [...b, name] } : { a: [...a, name], b: without(b) };
}

function Nothing() {
  return (
    <p class="card empty">
      <span>
        There are no runs here yet. Start one with <code>traceml run train.py</code>: it appears by
        itself.
      </span>
    </p>
  );
}

interface FilterProperties {
  filter: string;
  onFilter: (filter: string) => void;
  count: number;
  of: number;
}

function Filter({ filter, onFilter, count, of }: FilterProperties) {
  const all = `${of} ${of === 1 ? "run" : "runs"}`;
  return (
    <>
      <input
        type="search"
        data-filter
        value={filter}
        placeholder="Filter by name, state or diagnosis"
        aria-label="Filter the runs"
        onInput={(event) => onFilter(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
      />
      <span class="note" role="status">
        {count === of ? all : `${count} of ${all}`}
      </span>
    </>
  );
}

interface SortProperties {
  order: Order;
  onOrder: (order: Order) => void;
}

/** Where the list has no head to click on: on a phone. */
function SortBy({ order, onOrder }: SortProperties) {
  return (
    <div class="sort-by">
      <label>
        Sort by{" "}
        <select
          value={order.column}
          onChange={(event) => onOrder({ ...order, column: event.currentTarget.value as Column })}
        >
          {COLUMNS.map((column) => (
            <option key={column} value={column}>
              {TITLES[column]}
            </option>
          ))}
        </select>
      </label>
      <button
        type="button"
        class="plain"
        onClick={() => onOrder({ ...order, isDown: !order.isDown })}
        aria-label={order.isDown ? "Downwards; change to upwards" : "Upwards; change to downwards"}
      >
        {order.isDown ? "↓" : "↑"}
      </button>
    </div>
  );
}

interface ListProperties {
  runs: readonly RunRow[];
  base: string;
  order: Order;
  onOrder: (order: Order) => void;
  /** Those to compare; `null` where nothing can be compared. */
  sides: Sides | null;
  onPick: (name: string) => void;
}

function List({ runs, base, order, onOrder, sides, onPick }: ListProperties) {
  return (
    <table class="runs">
      <thead>
        <tr>
          {sides && <th class="pick" aria-label="Compare" />}
          {COLUMNS.map((column) => (
            <Title key={column} column={column} order={order} onOrder={onOrder} />
          ))}
        </tr>
      </thead>
      <tbody>
        {runs.map((run) => (
          <Line key={run.name} run={run} base={base} side={sideOf(sides, run)} onPick={onPick} />
        ))}
      </tbody>
    </table>
  );
}

type Side = "a" | "b" | "none";

/** `null`: nothing can be chosen. */
function sideOf(sides: Sides | null, { name }: RunRow): Side | null {
  if (sides === null) return null;
  return sides.a.includes(name) ? "a" : sides.b.includes(name) ? "b" : "none";
}

interface TitleProperties {
  column: Column;
  order: Order;
  onOrder: (order: Order) => void;
}

function Title({ column, order, onOrder }: TitleProperties) {
  const isSorted = order.column === column;
  const isDown = isSorted ? !order.isDown : column === "started";
  const sort = isSorted ? (order.isDown ? "descending" : "ascending") : "none";
  return (
    <th scope="col" class={`runs-${column}`} aria-sort={sort}>
      <button type="button" class="quiet" onClick={() => onOrder({ column, isDown })}>
        {TITLES[column]}
        <span aria-hidden="true">{isSorted ? (order.isDown ? " ↓" : " ↑") : ""}</span>
      </button>
    </th>
  );
}

interface LineProperties {
  run: RunRow;
  base: string;
  side: Side | null;
  onPick: (name: string) => void;
}

const Line = still(function Line({ run, base, side, onPick }: LineProperties) {
  return (
    <tr>
      {side !== null && (
        <td class="pick">
          <label>
            <input
              type="checkbox"
              checked={side !== "none"}
              aria-label={`Compare ${run.name}`}
              onChange={() => onPick(run.name)}
            />
            {side !== "none" && <SideBadge side={side} />}
          </label>
        </td>
      )}
      <th scope="row" class="runs-name">
        <a href={runAddress(base, run.name)} title={run.name}>
          {run.name}
        </a>
        <StatePill state={run.state}>{run.state_words}</StatePill>
      </th>
      <td class="runs-status">
        <Badge tone={run.severity}>{run.status}</Badge>
        <span class="runs-why" title={run.why}>
          {run.why}
        </span>
      </td>
      {(["step_time", "steps", "duration"] as const).map((column) => (
        <td key={column} class={`runs-${column}`} data-title={TITLES[column]}>
          {run[column]}
        </td>
      ))}
      <td class="runs-ranks" data-title={TITLES.ranks} title={run.ranks}>
        {run.ranks_short}
      </td>
      <td class="runs-started" data-title={TITLES.started} title={run.started}>
        {localTime(run.started_unix_s, run.started)}
      </td>
    </tr>
  );
});

function SideBadge({ side }: { side: "a" | "b" }) {
  return <span class={`side side-${side}`}>{side.toUpperCase()}</span>;
}

interface CompareProperties {
  sides: Sides;
  base: string;
  onMove: (name: string) => void;
  onDrop: (name: string) => void;
  onClear: () => void;
}

function Compare({ sides: { a, b }, base, onMove, onDrop, onClear }: CompareProperties) {
  const isReady = a.length > 0 && b.length > 0;
  const chip = (side: "a" | "b") => (name: string) => (
    <li key={name}>
      <button
        type="button"
        class={`side side-${side}`}
        title={`Move to side ${side === "a" ? "B" : "A"}`}
        aria-label={`${name} is on side ${side.toUpperCase()}; move it to the other`}
        onClick={() => onMove(name)}
      >
        {side.toUpperCase()}
      </button>
      <b title={name}>{name}</b>
      <button
        type="button"
        class="quiet"
        aria-label={`Leave ${name} out`}
        title="Leave it out"
        onClick={() => onDrop(name)}
      >
        ×
      </button>
    </li>
  );
  return (
    <div class="compare" role="region" aria-label="Compare">
      <ul class="chips">
        {a.map(chip("a"))}
        {b.map(chip("b"))}
      </ul>
      {!isReady && <span class="note">Choose a second run to compare it with.</span>}
      {isReady && a.length + b.length > 2 && (
        <span class="note">Two groups, the run being the unit.</span>
      )}
      <button type="button" class="quiet" onClick={onClear}>
        Clear
      </button>
      {isReady && (
        <a class="main-button" href={comparisonAddress(base, a, b)}>
          Compare
        </a>
      )}
    </div>
  );
}

function matches(run: RunRow, filter: string): boolean {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [run.name, run.state_words, run.status, run.why, run.ranks].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

/** Those without a value come last, whichever way it goes. */
function sorted(runs: readonly RunRow[], { column, isDown }: Order): RunRow[] {
  return [...runs].sort((one, other) => {
    const [a, b] = [keyOf(one, column), keyOf(other, column)];
    if (a === null || b === null) return Number(a === null) - Number(b === null);
    return compared(a, b) * (isDown ? -1 : 1);
  });
}

/** What a column is sorted by: numbers behind the words, where there are some. */
function keyOf(run: RunRow, column: Column): number | string | null {
  switch (column) {
    case "status":
      return `${SEVERITY.indexOf(run.severity)} ${run.status}`;
    case "step_time":
      return run.step_time_s;
    case "steps":
      return run.step_count;
    case "duration":
      return run.duration_s;
    case "started":
      return run.started_unix_s;
    default:
      return run[column];
  }
}

const words = new Intl.Collator("en", { numeric: true });

function compared(one: number | string, other: number | string): number {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return words.compare(String(one), String(other));
}
