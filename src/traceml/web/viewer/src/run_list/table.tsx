/** The table of runs: only the rows in sight are on the page, whatever their number. */

import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { GroupRow, ListColumn, RunsPage } from "../schema";
import { tableWidth, widthOf } from "./columns";
import { GroupLine } from "./group_line";
import { keyOf, type ListRows } from "./rows";
import { RunLine, type RowActions } from "./run_line";

const ROW_PX = 32;
const PHONE_ROW_PX = 64;
const OVERSCAN = 12; // rows above and below the window: scrolling a little draws nothing
const STEP = 4; // rows after which others are drawn
export const PHONE = "(max-width: 640px)";

interface Properties {
  page: RunsPage;
  rows: ListRows;
  /** Rows of the question before: a new one is being asked. */
  isOld: boolean;
  sort: string;
  onSort: (sort: string) => void;
  selected: ReadonlySet<string>;
  isAll: boolean;
  onAll: () => void;
  actions: RowActions;
  onGroup: (row: GroupRow) => void;
  onGroupSelect: (row: GroupRow) => void;
  /** Told where the scrolled element is, which the page moves when rows come in above. */
  onScroller: (element: HTMLElement | null, rowPx: number) => void;
}

export function RunTable(properties: Properties) {
  const { page, rows, selected } = properties;
  const isPhone = usePhone();
  const rowPx = isPhone ? PHONE_ROW_PX : ROW_PX;
  const [scroller, place] = useInSight(rows, rowPx, page.total, properties.onScroller);
  const first = Math.max(0, Math.min(place.first, page.total) - OVERSCAN);
  const end = Math.min(page.total, place.first + place.count + OVERSCAN);
  const isGrouped = page.groups !== null;
  const columns = isPhone ? 2 : page.columns.length + 1;
  const onKey = useRowKeys(scroller, rowPx, page.total, properties.actions);
  return (
    <div
      class={`run-scroller${properties.isOld ? " is-old" : ""}`}
      ref={scroller}
      role="region"
      aria-label="Runs, scrollable"
      tabIndex={0}
      onKeyDown={onKey}
    >
      <table
        class={`run-table${isPhone ? " on-phone" : ""}`}
        style={{ minWidth: isPhone ? "0" : `${tableWidth(page.columns, isGrouped)}px` }}
        aria-rowcount={page.total + 1}
        aria-busy={properties.isOld}
      >
        <Head {...properties} isGrouped={isGrouped} isPhone={isPhone} />
        <Spacer px={first * rowPx} columns={columns} />
        <tbody>
          {Array.from({ length: Math.max(0, end - first) }, (_, offset) => {
            const index = first + offset;
            const row = rows.at(index);
            if (row === null) return <Awaited key={`at ${index}`} px={rowPx} columns={columns} />;
            const shared = { index, columns: page.columns, isPhone };
            return "name" in row ? (
              <RunLine
                key={keyOf(row)}
                {...shared}
                row={row}
                isSelected={selected.has(row.name)}
                isBaseline={page.baseline?.name === row.name}
                actions={properties.actions}
              />
            ) : (
              <GroupLine
                key={keyOf(row)}
                {...shared}
                row={row}
                isSelected={row.names.length > 0 && row.names.every((name) => selected.has(name))}
                onOpen={properties.onGroup}
                onSelect={properties.onGroupSelect}
              />
            );
          })}
        </tbody>
        <Spacer px={(page.total - end) * rowPx} columns={columns} />
      </table>
    </div>
  );
}

function usePhone(): boolean {
  const [isPhone, setPhone] = useState(() => window.matchMedia(PHONE).matches);
  useEffect(() => {
    const media = window.matchMedia(PHONE);
    const onChange = (): void => setPhone(media.matches);
    media.addEventListener("change", onChange);
    return () => media.removeEventListener("change", onChange);
  }, []);
  return isPhone;
}

interface InSight {
  first: number;
  count: number;
}

/** Follows the scrolled element: which rows are in sight. */
function useInSight(
  rows: ListRows,
  rowPx: number,
  total: number,
  onScroller: (element: HTMLElement | null, rowPx: number) => void,
) {
  const scroller = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState<InSight>({
    first: 0,
    count: Math.ceil(window.innerHeight / rowPx),
  });
  const look = useCallback(() => {
    const element = scroller.current;
    if (element === null) return;
    const exact = Math.floor(element.scrollTop / rowPx);
    const count = Math.ceil(element.clientHeight / rowPx) + 1;
    rows.show(exact, exact + count);
    const first = exact - (exact % STEP);
    setPlace((before) =>
      before.first === first && before.count === count ? before : { first, count: count + STEP },
    );
  }, [rows, rowPx]);
  useLayoutEffect(() => {
    const element = scroller.current!;
    onScroller(element, rowPx);
    const observer = new ResizeObserver(look);
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    look();
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", look);
      onScroller(null, rowPx);
    };
  }, [look]);
  useLayoutEffect(look, [total]);
  return [scroller, place] as const;
}

/** Arrows go from row to row, x selects. */
function useRowKeys(
  scroller: { current: HTMLDivElement | null },
  rowPx: number,
  total: number,
  actions: RowActions,
) {
  return (event: KeyboardEvent): void => {
    const line = (event.target as HTMLElement).closest<HTMLElement>("tbody tr[data-index]");
    const element = scroller.current;
    if (element === null || event.ctrlKey || event.metaKey || event.altKey) return;
    if (line === null || (event.target as HTMLElement).matches("input:not([type=checkbox])")) return;
    const index = Number(line.dataset["index"]);
    if (event.key === "x" && line.dataset["name"] !== undefined) {
      actions.select(line.dataset["name"], index, event.shiftKey);
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const next = index + (event.key === "ArrowDown" ? 1 : -1);
      if (next < 0 || next >= total) return;
      reveal(element, next, rowPx);
      // A row that was out of sight is drawn after the scroll.
      if (!focusRow(element, next)) requestAnimationFrame(() => focusRow(element, next));
    } else return;
    event.preventDefault();
  };
}

/** Whether the row is there to be focused. */
function focusRow(element: HTMLElement, index: number): boolean {
  const row = element.querySelector<HTMLElement>(`tr[data-index="${index}"] :is(a, button)`);
  row?.focus({ preventScroll: true });
  return row !== null;
}

/** Scrolls so far that a row is in sight, below the head. */
function reveal(element: HTMLElement, index: number, rowPx: number): void {
  const headPx = element.querySelector("thead")?.clientHeight ?? 0;
  const [top, bottom] = [index * rowPx, (index + 1) * rowPx + headPx];
  if (top < element.scrollTop) element.scrollTop = top;
  else if (bottom > element.scrollTop + element.clientHeight) {
    element.scrollTop = bottom - element.clientHeight;
  }
}

function Spacer({ px, columns }: { px: number; columns: number }) {
  return (
    <tbody aria-hidden="true" class="spacer">
      <tr style={{ height: `${Math.max(0, px)}px` }}>
        <td colSpan={columns} />
      </tr>
    </tbody>
  );
}

function Awaited({ px, columns }: { px: number; columns: number }) {
  return (
    <tr class="awaited" style={{ height: `${px}px` }}>
      <td colSpan={columns}>…</td>
    </tr>
  );
}

function Head(properties: Properties & { isGrouped: boolean; isPhone: boolean }) {
  const { page, sort, onSort, isGrouped, isPhone } = properties;
  const count = properties.selected.size;
  const box = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    if (box.current) box.current.indeterminate = count > 0 && !properties.isAll;
  });
  return (
    <>
      <colgroup>
        <col class="pick-column" />
        {isPhone
          ? null
          : page.columns.map((column, place) => {
              const width = `${widthOf(column, place, isGrouped)}px`;
              return <col key={column.key} style={column.kind === "verdict" ? {} : { width }} />;
            })}
      </colgroup>
      <thead>
        <tr aria-rowindex={1}>
          <th class="pick" scope="col">
            <label title="Select all that match">
              <input
                type="checkbox"
                ref={box}
                checked={properties.isAll}
                aria-label="Select all runs that match"
                onChange={properties.onAll}
              />
            </label>
          </th>
          {isPhone ? (
            <th scope="col">Select all that match</th>
          ) : (
            page.columns.map((column, place) => (
              <Title
                key={column.key}
                column={column}
                isFirst={place === 0}
                sort={sort}
                onSort={onSort}
              />
            ))
          )}
        </tr>
        {page.baseline && !isGrouped && (
          <RunLine
            row={page.baseline}
            index={null}
            columns={page.columns}
            isPhone={isPhone}
            isSelected={properties.selected.has(page.baseline.name)}
            isBaseline
            actions={properties.actions}
          />
        )}
      </thead>
    </>
  );
}

interface TitleProperties {
  column: ListColumn;
  /** The first stays in sight when the table is scrolled sideways. */
  isFirst: boolean;
  sort: string;
  onSort: (sort: string) => void;
}

function Title({ column, isFirst, sort, onSort }: TitleProperties) {
  const kind = isFirst ? "name" : column.kind;
  const isDown = sort === `-${column.key}`;
  const isSorted = isDown || sort === column.key || (sort === "" && column.kind === "moment");
  const isDownNow = isDown || sort === "";
  const next = nextSort(column, sort);
  const words = isSorted ? (isDownNow ? "descending" : "ascending") : "none";
  const content = (
    <>
      <span class="title-words">{column.label}</span>
      <span aria-hidden="true">{isSorted ? (isDownNow ? " ↓" : " ↑") : ""}</span>
    </>
  );
  if (!column.can_sort) {
    return (
      <th scope="col" class={`kind-${kind}`} title={column.title}>
        {content}
      </th>
    );
  }
  return (
    <th scope="col" class={`kind-${kind}`} aria-sort={words}>
      <button
        type="button"
        class="quiet"
        title={column.title}
        onClick={() => onSort(next)}
      >
        {content}
      </button>
    </th>
  );
}

/** Upwards first, then downwards; times the other way round. */
export function nextSort(column: ListColumn, sort: string): string {
  const [up, down] = [column.key, `-${column.key}`];
  if (column.kind === "moment") return sort === "" || sort === down ? up : "";
  return sort === up ? down : up;
}
