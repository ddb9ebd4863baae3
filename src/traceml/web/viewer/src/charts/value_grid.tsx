/** A metric over two parameters as a table with coloured cells. */

import type { ValueGrid } from "../schema";
import { useTheme } from "../theme";
import { rampColour } from "./run_colours";

export function ValueGridView({ figure }: { figure: ValueGrid }) {
  const theme = useTheme();
  const title = `figure-${figure.id}`;
  const width = figure.high / 2 - figure.low / 2;
  const shade = (value: number | null): Record<string, string> =>
    value === null
      ? {}
      : { background: tinted(rampColour(width > 0 ? (value / 2 - figure.low / 2) / width : 0, theme)) };
  return (
    <figure class="figure" aria-labelledby={title}>
      <figcaption>
        <h3 id={title}>{figure.title}</h3>
      </figcaption>
      <div class="scroll" tabIndex={0} role="region" aria-label={`${figure.title}: grid`}>
        <table class="value-grid">
          <thead>
            <tr>
              <td>
                {figure.down} ↓ {figure.across} →
              </td>
              {figure.columns.map((name, index) => (
                <th key={index} scope="col">
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {figure.rows.map((name, row) => (
              <tr key={row}>
                <th scope="row">{name}</th>
                {figure.cells[row]?.map((cell, index) => (
                  <td key={index} style={shade(cell.value)} title={cell.note}>
                    {cell.text}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {figure.caption && <p class="caption">{figure.caption}</p>}
    </figure>
  );
}

/** Pale enough for words on it, in either theme. */
function tinted(colour: string): string {
  return colour.replace(")", " / 38%)");
}
