/** Keeps a piece of the page as it stands while nothing that it shows has changed. */

import { Component, type ComponentChild, type FunctionComponent, h } from "preact";

/** The server's deltas leave what did not change the very same object: comparing is cheap. */
export function still<P extends object>(View: FunctionComponent<P>) {
  return class Still extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      const names = Object.keys(next) as (keyof P)[];
      return names.some((name) => next[name] !== (this.props as Readonly<P>)[name]);
    }

    override render(): ComponentChild {
      return h(View, this.props as P);
    }
  };
}
