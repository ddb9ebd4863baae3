/** The runs of a history as a table: every dot of the chart with its numbers, in any order. */

import { useState } from "preact/hooks";
import { localTime } from "../numbers";
import { runAddress } from "../place";
import type { HistoryPage, HistoryPoint } from "../schema";

interface Column {
  label: string;
  /** What it is sorted by; the place among the runs where there is nothing else. */
  key: (point: HistoryPoint, place: number) => number | string;
  class?: string;
}

interface Sorting {
  column: number;
  isDown: boolean;
}

interface Properties {
  page: HistoryPage;
  base: string;
}

export function HistoryTable({ page, base }: Properties) {
  const [sorting, setSorting] = useState<Sorting>({ column: 0, isDown: true });
  const columns = columnsOf(page);
  const key = columns[sorting.column]!.key;
  const rows = page.points.map((point, place) => ({ point, place, key: key(point, place) }));
  rows.sort((one, other) => compared(one.key, other.key) || one.place - other.place);
  if (sorting.isDown) rows.reverse();
  return (
    <section class="card part" aria-labelledby="history-runs" data-part tabIndex={-1}>
      <header>
        <h2 id="history-runs">Runs</h2>
      </header>
      <div class="table">
        <div class="scroll history-runs" tabIndex={0} role="region" aria-label="Runs, table">
          <table aria-labelledby="history-runs">
            <thead>
              <tr>
                {columns.map((column, place) => (
                  <th
                    key={column.label}
                    scope="col"
                    class={column.class}
                    aria-sort={sortOf(sorting, place)}
                  >
                    <button
                      type="button"
                      class="quiet"
                      title={`Sort by ${column.label}`}
                      onClick={() =>
                        setSorting({
                          column: place,
                          isDown: sorting.column === place ? !sorting.isDown : place === 0,
                        })
                      }
                    >
                      {column.label}
                      {sorting.column === place && (
                        <span aria-hidden="true">{sorting.isDown ? " ↓" : " ↑"}</span>
                      )}
                    </button>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map(({ point, place }) => (
                <tr key={point.run}>
                  <td class="numbers">{place + 1}</td>
                  <th scope="row">
                    <a href={runAddress(base, point.run)}>{point.run}</a>
                  </th>
                  <td class="numbers">{point.text}</td>
                  {hasIntervals(page) && <td class="numbers">{point.interval ?? ""}</td>}
                  <td>
                    <code>{point.commit ?? ""}</code>
                    {point.is_dirty && <span class="hint"> with changes</span>}
                  </td>
                  {hasSubjects(page) && <td class="words">{point.subject ?? ""}</td>}
                  <td class="moment">{localTime(point.started_unix_s, "")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </div>
    </section>
  );
}

function hasIntervals({ points }: HistoryPage): boolean {
  return points.some(({ interval }) => interval !== null);
}

function hasSubjects({ points }: HistoryPage): boolean {
  return points.some(({ subject }) => subject !== null);
}

function columnsOf(page: HistoryPage): Column[] {
  const width = ({ low, high }: HistoryPoint): number => (high ?? 0) - (low ?? 0);
  return [
    { label: "#", key: (_, place) => place, class: "numbers" },
    { label: "Run", key: ({ run }) => run },
    { label: page.metric, key: ({ value }) => value, class: "numbers" },
    ...(hasIntervals(page) ? [{ label: "95 % interval", key: width, class: "numbers" }] : []),
    // Along commits, their order is that of the runs.
    {
      label: "Commit",
      key: (point, place) => (page.order === "commit" ? place : (point.commit ?? "")),
    },
    ...(hasSubjects(page)
      ? [{ label: "Subject", key: ({ subject }: HistoryPoint) => subject ?? "" }]
      : []),
    { label: "Started", key: ({ started_unix_s }) => started_unix_s ?? 0 },
  ];
}

function compared(one: number | string, other: number | string): number {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), undefined, { numeric: true });
}

function sortOf(sorting: Sorting, place: number): "ascending" | "descending" | "none" {
  if (sorting.column !== place) return "none";
  return sorting.isDown ? "descending" : "ascending";
}
