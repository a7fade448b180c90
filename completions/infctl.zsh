#compdef infctl

_infctl_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _INFCTL_COMPLETE=complete_zsh infctl)
}

compdef _infctl_completion infctl
