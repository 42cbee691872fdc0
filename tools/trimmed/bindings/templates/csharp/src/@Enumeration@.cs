namespace Edgegrad.@Name@
{
    /// <summary>@enumerationSentence@</summary>
    public enum @Enumeration@
    {
@enumerationRows@
    }
}
