/** Numbers with their intervals, as rows of plain elements: they scale and print by themselves. */

import type { EstimateRow, Estimates } from "../schema";

const LETTERS = 16;

export function EstimatesView({ figure }: { figure: Estimates }) {
  const title = `figure-${figure.id}`;
  const low = figure.axis.low ?? 0;
  const width = (figure.axis.high ?? 1) / 2 - low / 2 || 1;
  // Halved first: the distance of two of the largest numbers is not a number.
  const percent = (value: number): number => (100 * (value / 2 - low / 2)) / width;
  return (
    <figure class="figure" aria-labelledby={title}>
      <figcaption>
        <h3 id={title}>{figure.title}</h3>
      </figcaption>
      <div class="bars estimates">
        {figure.rows.map((row, index) => (
          <Row key={index} row={row} isBar={figure.is_bar} percent={percent} />
        ))}
      </div>
      {figure.caption && <p class="caption">{figure.caption}</p>}
    </figure>
  );
}

interface RowProperties {
  row: EstimateRow;
  isBar: boolean;
  percent: (value: number) => number;
}

function Row({ row, isBar, percent }: RowProperties) {
  const zero = percent(0);
  const { value, low, high } = row;
  const at = value === null ? null : percent(value);
  return (
    <div class="bar-row">
      <span class="bar-name" title={row.name}>
        {row.name}
      </span>
      <span class={`bar-track estimate tone-${row.tone ?? "info"}`}>
        {isBar && zero > 0 && zero < 100 && <span class="bar-zero" style={{ left: `${zero}%` }} />}
        {at !== null &&
          (isBar ? (
            <span
              class="bar-piece"
              style={{ left: `${Math.min(zero, at)}%`, width: `${Math.abs(at - zero)}%` }}
            />
          ) : (
            <span class="estimate-dot" style={{ left: `${at}%` }} />
          ))}
        {low !== null && high !== null && (
          <span
            class="estimate-range"
            style={{ left: `${percent(low)}%`, width: `${percent(high) - percent(low)}%` }}
          />
        )}
      </span>
      <span class="bar-text">
        {row.text}
        {row.note && <Note words={row.note} />}
      </span>
    </div>
  );
}

/** Few words stand beside the number, many below it. */
function Note({ words }: { words: string }) {
  return <span class={`aside${words.length > LETTERS ? " below" : ""}`}> {words}</span>;
}
