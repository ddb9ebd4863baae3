/** The layers as a table with bars; of thousands of rows only those in sight are drawn. */

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { axisWords } from "../numbers";
import type { LayerBar, LayerColumn, LayerRows } from "../schema";
import { colourVariable, usePrinting } from "../theme";
import { cellText, columnOf, type Shown, type Sorting, valuesOf, withUnit } from "./layer_rows";

interface Properties {
  data: LayerRows;
  bars: readonly LayerBar[];
  shown: readonly Shown[];
  isTree: boolean;
  sorting: Sorting;
  onSort: (sorting: Sorting) => void;
  onToggle: (name: string, isOpen: boolean) => void;
}

const ROW_PX = 29; // as in layers.css
const SPARE_ROWS = 12; // drawn above and below what is in sight
const FEW_ROWS = 80; // all of them are drawn
const PRINTED_ROWS = 120; // three sheets of paper
const PRINTED_COLUMNS = 7; // for which a sheet of paper is wide enough

export function LayerTable(properties: Properties) {
  const { data, bars, shown, isTree, sorting, onSort, onToggle } = properties;
  const scroller = useRef<HTMLDivElement>(null);
  const isPrinting = usePrinting();
  const columns = isPrinting ? data.columns.slice(0, PRINTED_COLUMNS) : data.columns;
  const [first, last] = useInSight(scroller, shown.length);
  const [focus, setFocus] = useState(0);
  const focused = Math.min(focus, shown.length - 1);
  const drawn = isPrinting ? shown.slice(0, PRINTED_ROWS) : shown.slice(first, last);
  const above = isPrinting ? 0 : first;
  const hidden = isPrinting ? shown.length - drawn.length : 0;
  const names = isPrinting ? [] : extrasOf(data);
  const reaches = bars.map((bar) => reachOf(data, bar, isTree));
  const width = 1 + bars.length + columns.length + names.length;

  const move = (to: number): void => {
    const next = Math.max(0, Math.min(shown.length - 1, to));
    setFocus(next);
    bringIntoSight(scroller.current, next);
    window.requestAnimationFrame(() => rowAt(scroller.current, next)?.focus());
  };
  const press = (event: KeyboardEvent): void => {
    const one = shown[focused];
    const isRow = (event.target as HTMLElement).tagName === "TR";
    if (one === undefined || !isRow || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor((scroller.current?.clientHeight ?? 0) / ROW_PX) - 2);
    const places: Record<string, number> = {
      ArrowDown: focused + 1,
      ArrowUp: focused - 1,
      PageDown: focused + page,
      PageUp: focused - page,
      Home: 0,
      End: shown.length - 1,
    };
    const to = places[event.key];
    if (to !== undefined) move(to);
    else if (event.key === "ArrowRight" && one.hasBelow && !one.isOpen) onToggle(one.row.name, true);
    else if (event.key === "ArrowRight" && one.isOpen) move(focused + 1);
    else if (event.key === "ArrowLeft" && one.isOpen) onToggle(one.row.name, false);
    else if (event.key === "ArrowLeft" && one.depth > 0) move(placeAbove(shown, focused));
    else if (event.key === "Enter" && one.hasBelow) onToggle(one.row.name, !one.isOpen);
    else return;
    event.preventDefault();
  };
  return (
    <>
      <div class="layer-scroll" ref={scroller} role="region" aria-label="Layers, table" tabIndex={-1}>
        <table
          class="layer-table"
          role={isTree ? "treegrid" : "grid"}
          aria-label="Layers"
          aria-rowcount={shown.length + 1}
          onKeyDown={press}
        >
          <thead>
            <tr>
              <th scope="col" class="layer-name" aria-sort={sortOf(null, sorting)}>
                <SortButton label="Layer" id={null} sorting={sorting} onSort={onSort} />
              </th>
              {bars.map((bar) => (
                <th key={bar.label} scope="col">
                  <BarKey bar={bar} data={data} />
                </th>
              ))}
              {columns.map((column) => (
                <th
                  key={column.id}
                  scope="col"
                  class="numbers"
                  aria-sort={sortOf(column.id, sorting)}
                >
                  <SortButton
                    label={axisWords(column.label, column.unit)}
                    id={column.id}
                    sorting={sorting}
                    onSort={onSort}
                  />
                </th>
              ))}
              {names.map(({ label }) => (
                <th key={label} scope="col">
                  {label}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {above > 0 && <Space rows={above} columns={width} />}
            {drawn.map((one, index) => (
              <LayerLine
                key={one.row.name + one.place}
                {...properties}
                columns={columns}
                one={one}
                number={above + index}
                isFocused={above + index === focused}
                reaches={reaches}
                names={names}
                onFocus={setFocus}
              />
            ))}
            {!isPrinting && last < shown.length && (
              <Space rows={shown.length - last} columns={width} />
            )}
          </tbody>
        </table>
      </div>
      {hidden > 0 && <p class="note">… and {hidden} more rows, in final_summary.json.</p>}
    </>
  );
}

interface LineProperties extends Properties {
  columns: readonly LayerColumn[];
  one: Shown;
  number: number;
  isFocused: boolean;
  reaches: readonly number[];
  names: readonly Extra[];
  onFocus: (number: number) => void;
}

function LayerLine(properties: LineProperties) {
  const { data, bars, columns, one, number, isTree, isFocused, reaches, names } = properties;
  const { onFocus, onToggle } = properties;
  const { row, place, depth, hasBelow, isOpen } = one;
  return (
    <tr
      aria-rowindex={number + 2}
      {...(isTree && { "aria-level": depth + 1 })}
      {...(hasBelow && { "aria-expanded": isOpen })}
      data-layer={number}
      tabIndex={isFocused ? 0 : -1}
      onFocus={() => onFocus(number)}
    >
      <th scope="row" class="layer-name" title={titleOf(one)}>
        <span class="layer-cell" style={{ paddingLeft: `${Math.min(depth, 12) * 14}px` }}>
          {isTree && (
            <button
              type="button"
              class="fold"
              tabIndex={-1}
              hidden={!hasBelow}
              aria-label={`${isOpen ? "Close" : "Open"} ${row.name}`}
              onClick={() => onToggle(row.name, !isOpen)}
            >
              {isOpen ? "▾" : "▸"}
            </button>
          )}
          <span class="layer-label">{isTree ? row.label : row.name}</span>
          {row.layers > 1 && <span class="layer-count">×{row.layers}</span>}
          <span class="layer-kind">{row.kind}</span>
        </span>
      </th>
      {bars.map((bar, index) => (
        <td key={bar.label} class="layer-bar">
          <Bar data={data} bar={bar} place={place} isTree={isTree} reach={reaches[index]!} />
        </td>
      ))}
      {columns.map((column) => (
        <td key={column.id} class="numbers">
          {cellText(valuesOf(column, isTree)[place], column.decimals)}
        </td>
      ))}
      {names.map(({ label, text }) => (
        <td key={label}>{text(place)}</td>
      ))}
    </tr>
  );
}

function titleOf({ row }: Shown): string {
  const many = row.layers > 1 ? ` ×${row.layers}` : "";
  return [`${row.name}${many}`, row.kind].filter(Boolean).join("\n");
}

/** A column of words, there only where a row has any. */
interface Extra {
  label: string;
  text: (place: number) => string;
}

function extrasOf({ rows }: LayerRows): Extra[] {
  const extras: Extra[] = [
    { label: "Limited by", text: (place) => rows[place]?.bound ?? "" },
    { label: "Worst rank", text: (place) => rows[place]?.worst_rank ?? "" },
  ];
  return extras.filter(({ text }) => rows.some((_, place) => text(place) !== ""));
}

function SortButton(properties: {
  label: string;
  id: string | null;
  sorting: Sorting;
  onSort: (sorting: Sorting) => void;
}) {
  const { label, id, sorting, onSort } = properties;
  const isUsed = sorting.id === id;
  const next = { id, isAscending: isUsed && id !== null && !sorting.isAscending };
  return (
    <button
      type="button"
      class="quiet"
      title={id === null ? "In the model's order" : `Sort by ${label}`}
      onClick={() => onSort(next)}
    >
      {label}
      {isUsed && id !== null && <span aria-hidden="true">{sorting.isAscending ? " ↑" : " ↓"}</span>}
    </button>
  );
}

function sortOf(id: string | null, sorting: Sorting): "ascending" | "descending" | "none" {
  if (sorting.id !== id || id === null) return "none";
  return sorting.isAscending ? "ascending" : "descending";
}

// Bars

function columnsOf(data: LayerRows, bar: LayerBar): LayerColumn[] {
  return bar.columns.flatMap((id) => columnOf(data, id) ?? []);
}

/** The longest bar, in the columns' own numbers. */
function reachOf(data: LayerRows, bar: LayerBar, isTree: boolean): number {
  const values = columnsOf(data, bar).map((column) => valuesOf(column, isTree));
  let most = 0;
  data.rows.forEach((_, place) => {
    const sum = values.reduce((all, each) => all + (each[place] ?? 0), 0);
    if (sum > most) most = sum;
  });
  return most || 1;
}

function Bar(properties: {
  data: LayerRows;
  bar: LayerBar;
  place: number;
  isTree: boolean;
  reach: number;
}) {
  const { data, bar, place, isTree, reach } = properties;
  let begin = 0;
  const pieces = columnsOf(data, bar).map((column, index) => {
    const value = valuesOf(column, isTree)[place] ?? 0;
    const left = begin;
    begin += value;
    return { column, value, left, colour: bar.colours[index] ?? "muted" };
  });
  const title = pieces
    .filter(({ value }) => value > 0)
    .map(({ column, value }) => `${column.label} ${withUnit(column, value)}`)
    .join("\n");
  return (
    <span class="bar-track" title={title}>
      {pieces
        .filter(({ value }) => value > 0)
        .map(({ column, value, left, colour }) => (
          <span
            key={column.id}
            class="bar-piece"
            style={{
              left: `${(100 * left) / reach}%`,
              width: `${(100 * value) / reach}%`,
              background: colourVariable(colour),
            }}
          />
        ))}
    </span>
  );
}

function BarKey({ bar, data }: { bar: LayerBar; data: LayerRows }) {
  return (
    <span class="layer-key">
      {bar.label}
      {columnsOf(data, bar).map((column, index) => (
        <span
          key={column.id}
          class="swatch"
          title={column.label}
          style={{ color: colourVariable(bar.colours[index] ?? "muted") }}
        />
      ))}
    </span>
  );
}

// What is in sight

function Space({ rows, columns }: { rows: number; columns: number }) {
  return (
    <tr aria-hidden="true" class="layer-space">
      <td colSpan={columns} style={{ height: `${rows * ROW_PX}px` }} />
    </tr>
  );
}

/** The first row that is drawn, and the one after the last. */
function useInSight(scroller: { current: HTMLDivElement | null }, count: number): [number, number] {
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  useLayoutEffect(() => {
    const element = scroller.current;
    if (element === null) return;
    const follow = (): void => {
      setTop(Math.floor(element.scrollTop / ROW_PX));
      setHeight(element.clientHeight);
    };
    follow();
    element.addEventListener("scroll", follow, { passive: true });
    return () => element.removeEventListener("scroll", follow);
  }, [count]);
  if (count <= FEW_ROWS) return [0, count];
  const inSight = Math.ceil(height / ROW_PX);
  const first = Math.max(0, Math.min(top, count - inSight) - SPARE_ROWS);
  return [first, Math.min(count, first + inSight + 2 * SPARE_ROWS)];
}

function bringIntoSight(element: HTMLDivElement | null, number: number): void {
  if (element === null) return;
  const head = element.querySelector("thead")?.clientHeight ?? 0;
  const top = number * ROW_PX;
  if (top < element.scrollTop) element.scrollTop = top;
  const bottom = top + ROW_PX + head - element.clientHeight;
  if (bottom > element.scrollTop) element.scrollTop = bottom;
}

function rowAt(element: HTMLDivElement | null, number: number): HTMLElement | null {
  return element?.querySelector<HTMLElement>(`tr[data-layer="${number}"]`) ?? null;
}

function placeAbove(shown: readonly Shown[], number: number): number {
  const depth = shown[number]?.depth ?? 0;
  for (let place = number - 1; place >= 0; place--) {
    if (shown[place]!.depth < depth) return place;
  }
  return number;
}
