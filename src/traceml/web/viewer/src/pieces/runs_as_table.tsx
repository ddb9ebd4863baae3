/** The runs of a chart as a table: not everybody sees a picture, and some want the numbers. */

import { useState } from "preact/hooks";
import { runAddress } from "../place";
import type { ExploredColumn } from "../schema";
import { wordsOf } from "./run_values";

const MOST = 200;

interface Properties {
  title: string;
  names: readonly string[];
  columns: readonly ExploredColumn[];
  chosen: Uint8Array | null;
  base: string;
}

export function RunsAsTable(properties: Properties) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="figure-data" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Data as table</summary>
      {isOpen && <Rows {...properties} />}
    </details>
  );
}

function Rows({ title, names, columns, chosen, base }: Properties) {
  const runs = names.map((_, run) => run).filter((run) => chosen?.[run] !== 0);
  const shown = runs.slice(0, MOST);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`${title}: data`}>
      {runs.length > MOST && (
        <p class="caption">
          The {MOST} newest of {runs.length} runs.
        </p>
      )}
      <table>
        <thead>
          <tr>
            <th scope="col">Run</th>
            {columns.map((column) => (
              <th key={column.name} scope="col" title={column.name}>
                {column.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((run) => (
            <tr key={run}>
              <th scope="row">
                <a href={runAddress(base, names[run]!)}>{names[run]}</a>
              </th>
              {columns.map((column) => (
                <td key={column.name}>{wordsOf(column, column.values[run])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
