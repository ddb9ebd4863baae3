/** The strip on top of every page: what one looks at, light or dark, and the keys. */

import type { Page } from "../schema";
import { toggleTheme, useTheme } from "../theme";
import { StatePill } from "./tone";

interface Properties {
  page: Page | null;
  /** Where the list of runs is; `null` where there is none: in a report. */
  home: string | null;
  /** What the page is called, where it is none of the server's; `null`: see `page`. */
  name: string | null;
  /** Nothing comes from the server: what the page says of the run may be old. */
  isLost: boolean;
  /** Where the page is as one file; `null` where there is none. */
  report: string | null;
  onHelp: () => void;
}

export function TopBar({ page, home, name, isLost, report, onHelp }: Properties) {
  const theme = useTheme();
  const other = theme === "dark" ? "light" : "dark";
  const isInside = home !== null && (name === "Explore" || name === "History" || page !== null);
  return (
    <header class="top">
      <div class="crumbs">
        {home === null ? (
          <span class="brand">TraceML</span>
        ) : (
          <a class="brand" href={home} title="All runs (g r)">
            TraceML
          </a>
        )}
        {isInside && (
          <a class="up" href={home}>
            Runs
          </a>
        )}
        {name !== null && <h1>{name}</h1>}
        {page && <Name page={page} isLost={isLost} />}
      </div>
      <div class="tools">
        {report !== null && (
          <a class="tool" href={report} download title="Download as one HTML file">
            <svg class="icon" viewBox="0 0 16 16" role="img" aria-label="Download as one HTML file">
              <path
                fill="currentColor"
                d="M7.2 1.5h1.6v6.6l2.3-2.3 1.1 1.1L8 11.1 3.8 6.9l1.1-1.1 2.3 2.3zM2 12.5h12V14H2z"
              />
            </svg>
          </a>
        )}
        <button type="button" class="tool" onClick={toggleTheme} title={`Change to ${other} (t)`}>
          <svg class="icon" viewBox="0 0 16 16" role="img" aria-label={`Change to ${other}`}>
            <path
              fill="currentColor"
              d="M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1m0 1.5v11a5.5 5.5 0 0 1 0-11"
            />
          </svg>
        </button>
        <button type="button" class="tool" onClick={onHelp} title="Keys (?)" aria-label="Keys">
          ?
        </button>
      </div>
    </header>
  );
}

function Name({ page, isLost }: { page: Page; isLost: boolean }) {
  switch (page.type) {
    case "run":
      return (
        <>
          <h1 title={page.head.name}>{page.head.name}</h1>
          {isLost && page.head.state === "live" ? (
            <StatePill state="lost">connection lost</StatePill>
          ) : (
            <StatePill state={page.head.state}>{page.head.state_words}</StatePill>
          )}
        </>
      );
    case "comparison":
      return (
        <h1 title={`${page.a} against ${page.b}`}>
          <span class="side side-a">A</span> {page.a} <span class="against">against</span>{" "}
          <span class="side side-b">B</span> {page.b}
        </h1>
      );
    case "many":
      return <h1 title={page.title}>{page.title}</h1>;
  }
}
