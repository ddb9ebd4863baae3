/** Links to other pages of the server, where there is one behind this page. */

import { createContext } from "preact";
import { useContext } from "preact/hooks";

/** What stands before every address of the server; `null` in a report, where no link leads on. */
export const BaseContext = createContext<string | null>(null);

/** The whole address of a page that a record names ("/runs/NAME"); `null` where it leads nowhere. */
export function useLink(): (link: string | null) => string | null {
  const base = useContext(BaseContext);
  return (link) => (base === null || link === null ? null : base + link);
}
